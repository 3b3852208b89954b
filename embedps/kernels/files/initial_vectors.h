// What a file has for the rows that begin: an interface, which the rows of a shard read.
#ifndef EMBEDPS_KERNELS_FILES_INITIAL_VECTORS_H_
#define EMBEDPS_KERNELS_FILES_INITIAL_VECTORS_H_

#include <cstdint>

namespace embedps {

// Vectors of some ids of a table, with which their rows begin. Thread-safe.
class InitialVectors {
 public:
  virtual ~InitialVectors() = default;
  // Copies the vector of an id. Returns false if there is none.
  virtual bool Read(int64_t id, float* vector) const = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_INITIAL_VECTORS_H_
