// Vectors of new rows that a function of the user's computes, in Python.
#ifndef EMBEDPS_KERNELS_STORE_VECTOR_FUNCTION_H_
#define EMBEDPS_KERNELS_STORE_VECTOR_FUNCTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Writes the vectors [num_ids, dim] of ids by the function called `name`, and returns 0. Else it
// writes what failed, as a text of fewer than `error_bytes` bytes and a zero.
using VectorFunction = int (*)(const char* name, const int64_t* ids, int64_t num_ids, int dim,
                               float* vectors, char* error, int64_t error_bytes);

// Sets what this process calls. It may wait for Python's lock, so it is called without locks.
void SetVectorFunction(VectorFunction function);

// The vectors of the new rows of one step.
class NewVectors {
 public:
  // Computes those of a table's ids, in one call.
  Status Compute(int table, const std::string& name, std::vector<int64_t> ids, int dim);
  // Returns the vector of an id, or null if it was not computed.
  const float* Find(int table, int64_t id) const;

 private:
  struct OfTable {
    int table;
    int dim;
    std::vector<int64_t> ids;  // sorted
    std::vector<float> vectors;
  };
  std::vector<OfTable> tables_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_VECTOR_FUNCTION_H_
