// Sorts lists of ids.
#ifndef EMBEDPS_KERNELS_STORE_SORT_IDS_H_
#define EMBEDPS_KERNELS_STORE_SORT_IDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace embedps {

// Sorts ids and removes duplicates. Sorts by one byte after the other (radix sort, from the lowest)
// unless there are few: the comparisons of a sort are unpredictable branches.
inline void SortIds(std::vector<int64_t>* ids) {
  constexpr size_t kFew = 512;
  constexpr int kBits = 8;
  constexpr uint64_t kSign = uint64_t{1} << 63;
  if (ids->size() < kFew) {
    std::sort(ids->begin(), ids->end());
  } else {
    uint64_t varies = 0;  // bits in which ids differ
    for (const int64_t id : *ids) varies |= static_cast<uint64_t>(id ^ ids->front());
    std::vector<int64_t> sorted(ids->size());
    for (int shift = 0; shift < 64; shift += kBits) {
      const auto digit = [shift](int64_t id) {
        return (static_cast<uint64_t>(id) ^ kSign) >> shift & ((1u << kBits) - 1);
      };
      if ((varies >> shift & ((1u << kBits) - 1)) == 0) continue;
      size_t starts[(1 << kBits) + 1] = {};
      for (const int64_t id : *ids) ++starts[digit(id) + 1];
      for (int d = 0; d < 1 << kBits; ++d) starts[d + 1] += starts[d];
      for (const int64_t id : *ids) sorted[starts[digit(id)]++] = id;
      ids->swap(sorted);
    }
  }
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_SORT_IDS_H_
