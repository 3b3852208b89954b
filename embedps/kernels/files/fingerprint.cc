#include "embedps/kernels/files/fingerprint.h"

#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

namespace embedps {

int64_t Fingerprint(const char* text, size_t bytes) {
  constexpr int64_t kMissing = -1, kRare = -2;  // embedps/data/dataset.py
  const auto value = static_cast<int64_t>(XXH3_64bits(text, bytes));
  return value == kMissing || value == kRare ? value + kRare : value;
}

}  // namespace embedps
