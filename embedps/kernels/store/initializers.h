// The embedding of a new row: a pure function of (seed, table, id).
#ifndef EMBEDPS_KERNELS_STORE_INITIALIZERS_H_
#define EMBEDPS_KERNELS_STORE_INITIALIZERS_H_

#include <cstdint>

namespace embedps {

// kInitializerKinds has the names of the kinds.
struct InitializerConfig {
  enum class Kind { kConstant, kUniform, kNormal };
  Kind kind = Kind::kConstant;
  float low = 0;   // constant: the value; uniform: the lower bound; normal: the mean
  float high = 0;  // uniform: the upper bound; normal: the standard deviation
};

// Sets the embedding [dim] of a new row. `table_salt` is the TableSalt of the table's name. Uniform
// values have 24 random bits. Normal values come from Box-Muller in double.
void InitializeEmbedding(const InitializerConfig& config, int64_t seed, uint64_t table_salt,
                         int64_t id, int dim, float* embedding);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_INITIALIZERS_H_
