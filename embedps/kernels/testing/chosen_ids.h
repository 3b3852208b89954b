// Ids that somebody chooses to harm an index by the public hash.
#ifndef EMBEDPS_KERNELS_TESTING_CHOSEN_IDS_H_
#define EMBEDPS_KERNELS_TESTING_CHOSEN_IDS_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/runtime/hash.h"

namespace embedps {
namespace testing {

// Returns the word that Mix64 maps to another.
inline uint64_t UnMix64(uint64_t x) {
  const auto inverse = [](uint64_t odd) {
    uint64_t found = odd;  // right in 3 bits, and in twice as many after each step
    for (int i = 0; i < 5; ++i) found *= 2 - odd * found;
    return found;
  };
  x = (x ^ (x >> 31) ^ (x >> 62)) * inverse(kSplitMixMultiplier2);
  x = (x ^ (x >> 27) ^ (x >> 54)) * inverse(kSplitMixMultiplier1);
  return (x ^ (x >> 30) ^ (x >> 60)) - kSplitMixIncrement;
}

// Returns `n` ids whose RowHash has 0 in its lowest 40 bits, so that all are in the first stripe of
// their table, and in each index by these bits at one place. n is at most 2^24.
inline std::vector<int64_t> ChosenIds(uint64_t table_salt, uint64_t n) {
  std::vector<int64_t> ids;
  for (uint64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<int64_t>(UnMix64(i << 40) ^ table_salt));
  }
  return ids;
}

}  // namespace testing
}  // namespace embedps

#endif  // EMBEDPS_KERNELS_TESTING_CHOSEN_IDS_H_
