// The ranks of items among all candidates, by counting those that score higher.
#ifndef EMBEDPS_KERNELS_DENSE_RANKS_H_
#define EMBEDPS_KERNELS_DENSE_RANKS_H_

#include <cstdint>

namespace embedps {

// Lists of numbers: list i is values[splits[i]] to values[splits[i + 1]].
struct Lists {
  const int64_t* values;
  const int64_t* splits;
};

struct RankInputs {
  int dim;
  const float* queries;     // [queries, dim]
  const float* candidates;  // [num_candidates, dim]
  int64_t num_candidates;
  Lists wanted;  // by query, the places of the candidates to rank; a negative place is none
  Lists seen;    // by query, the places of candidates to leave out; a negative place is none
};

// Sets the rank of each wanted candidate of queries [begin, end), in the order of `wanted`: the
// number of candidates that score higher, or as high and come first, without those seen. A score is
// the dot product with the query. A candidate that is none, or whose score is NaN, ranks last. A
// wanted candidate has a rank even if it was seen.
//
// The counts equal places in a sorted list, without sorting or keeping scores.
void CountRanks(const RankInputs& inputs, int64_t begin, int64_t end, int64_t* ranks);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_RANKS_H_
