// Numbers ids in the order of their first appearance.
#ifndef EMBEDPS_KERNELS_LOOKUP_ID_NUMBERS_H_
#define EMBEDPS_KERNELS_LOOKUP_ID_NUMBERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "embedps/kernels/runtime/place_hash.h"

namespace embedps {

class IdNumbers {
 public:
  // Has room for `num_ids` different ids.
  explicit IdNumbers(int64_t num_ids) {
    size_t capacity = 16;
    while (capacity < static_cast<size_t>(num_ids) * 2) capacity *= 2;
    numbers_.assign(capacity, -1);
  }

  // Returns an id's number, which is its index in `ids`. A new id is appended there.
  int32_t Add(int64_t id, std::vector<int64_t>* ids) {
    const size_t mask = numbers_.size() - 1;
    size_t at = PlaceHash(static_cast<uint64_t>(id)) & mask;
    while (numbers_[at] >= 0 && (*ids)[numbers_[at]] != id) at = (at + 1) & mask;
    if (numbers_[at] < 0) {
      numbers_[at] = static_cast<int32_t>(ids->size());
      ids->push_back(id);
    }
    return numbers_[at];
  }

  // Returns how many places the longest search looks at, at most. For tests.
  size_t MostProbes() const {
    size_t most = 0, run = 0;
    for (size_t i = 0; i < 2 * numbers_.size(); ++i) {  // a run may wrap
      run = numbers_[i % numbers_.size()] < 0 ? 0 : run + 1;
      most = std::max(most, run + 1);
    }
    return most;
  }

 private:
  std::vector<int32_t> numbers_;  // of the ids by place, or -1
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_ID_NUMBERS_H_
