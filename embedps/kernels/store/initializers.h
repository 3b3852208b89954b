// The embedding of a new row: the vector of its id in a file, or a pure function of (seed, table,
// id), or a function of the user's (vector_function.h).
#ifndef EMBEDPS_KERNELS_STORE_INITIALIZERS_H_
#define EMBEDPS_KERNELS_STORE_INITIALIZERS_H_

#include <cfloat>
#include <cstdint>
#include <string>

#include "embedps/kernels/runtime/settings.h"

namespace embedps {

inline constexpr const char* kInitializerKinds[] = {"constant", "uniform", "normal", "function"};

struct InitializerConfig {
  enum class Kind { kConstant, kUniform, kNormal, kFunction };
  Kind kind = Kind::kConstant;
  float low = 0;         // constant: the value; uniform: the lower bound; normal: the mean
  float high = 0;        // uniform: the upper bound; normal: the standard deviation
  std::string function;  // kFunction: its name

  void Read(Settings* settings) {
    settings->Name("initializer", kInitializerKinds, &kind);
    settings->Number("initializer.low", -FLT_MAX, FLT_MAX, &low);
    settings->Number("initializer.high", -FLT_MAX, FLT_MAX, &high);
    settings->Text("initializer.function", &function);
  }
};

// Sets the embedding [dim] of a new row, unless the kind is kFunction. `table_salt` is the
// TableSalt of the table's name. Uniform values have 24 random bits. Normal values come from
// Box-Muller in double.
void InitializeEmbedding(const InitializerConfig& config, int64_t seed, uint64_t table_salt,
                         int64_t id, int dim, float* embedding);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_INITIALIZERS_H_
