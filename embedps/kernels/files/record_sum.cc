#include "embedps/kernels/files/record_sum.h"

#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

namespace embedps {

uint64_t RecordSum(const void* bytes, size_t num_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes, num_bytes, seed);
}

}  // namespace embedps
