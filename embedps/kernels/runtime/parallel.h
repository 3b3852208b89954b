// How code without TensorFlow gets threads.
#ifndef EMBEDPS_KERNELS_RUNTIME_PARALLEL_H_
#define EMBEDPS_KERNELS_RUNTIME_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace embedps {

// Calls work(begin, end) over a partition of [0, n), possibly on several threads. Returns when all
// of it is done. `cost` is roughly the cycles per element.
using ParallelFor = std::function<void(
    int64_t n, int64_t cost, const std::function<void(int64_t begin, int64_t end)>& work)>;

// A ParallelFor that works on the calling thread.
inline void SerialFor(int64_t n, int64_t /*cost*/,
                      const std::function<void(int64_t, int64_t)>& work) {
  if (n > 0) work(0, n);
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_PARALLEL_H_
