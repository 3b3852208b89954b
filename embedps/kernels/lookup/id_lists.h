// Lists of ids, one per example: those of list i are ids[splits[i], splits[i + 1]).
#ifndef EMBEDPS_KERNELS_LOOKUP_ID_LISTS_H_
#define EMBEDPS_KERNELS_LOOKUP_ID_LISTS_H_

#include <cstdint>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Checks that splits [num_splits] rise from 0 to num_ids. `what` begins the error message.
Status CheckSplits(const char* what, const int64_t* splits, int64_t num_splits, int64_t num_ids);

// Writes the splits of the lists after each is cut to max_length ids: kept_splits [num_lists + 1].
// Returns the number of ids that remain.
int64_t CutSplits(const int64_t* splits, int64_t num_lists, int64_t max_length,
                  int64_t* kept_splits);

// Copies the last ids of each list, as many as its kept_splits say, to `kept`.
void KeepLast(const int64_t* ids, const int64_t* splits, int64_t num_lists,
              const int64_t* kept_splits, int64_t* kept);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_ID_LISTS_H_
