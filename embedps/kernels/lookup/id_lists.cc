#include "embedps/kernels/lookup/id_lists.h"

#include <algorithm>
#include <string>

namespace embedps {

Status CheckSplits(const char* what, const int64_t* splits, int64_t num_splits, int64_t num_ids) {
  bool rising = num_splits > 0 && splits[0] == 0 && splits[num_splits - 1] == num_ids;
  for (int64_t i = 1; i < num_splits; ++i) rising &= splits[i - 1] <= splits[i];
  if (rising) return Status::Ok();
  return Status::InvalidArgument(std::string(what) + ": row_splits must rise from 0 to " +
                                 std::to_string(num_ids) + ", the number of ids");
}

int64_t CutSplits(const int64_t* splits, int64_t num_lists, int64_t max_length,
                  int64_t* kept_splits) {
  kept_splits[0] = 0;
  for (int64_t i = 0; i < num_lists; ++i) {
    kept_splits[i + 1] = kept_splits[i] + std::min(splits[i + 1] - splits[i], max_length);
  }
  return kept_splits[num_lists];
}

void KeepLast(const int64_t* ids, const int64_t* splits, int64_t num_lists,
              const int64_t* kept_splits, int64_t* kept) {
  for (int64_t i = 0; i < num_lists; ++i) {
    const int64_t n = kept_splits[i + 1] - kept_splits[i];
    std::copy_n(ids + splits[i + 1] - n, n, kept + kept_splits[i]);
  }
}

}  // namespace embedps
