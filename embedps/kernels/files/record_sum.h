// The checksum of a record in memory, for code that includes no Arrow. Plain C++17.
#ifndef EMBEDPS_KERNELS_FILES_RECORD_SUM_H_
#define EMBEDPS_KERNELS_FILES_RECORD_SUM_H_

#include <cstddef>
#include <cstdint>

namespace embedps {

// Returns the seeded XXH3-64 of bytes.
uint64_t RecordSum(const void* bytes, size_t num_bytes, uint64_t seed);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_RECORD_SUM_H_
