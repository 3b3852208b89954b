// The worker's second half of a lookup: combines rows into one vector per feature and example, or
// lays them out one after the other.
#ifndef EMBEDPS_KERNELS_LOOKUP_COMBINER_H_
#define EMBEDPS_KERNELS_LOOKUP_COMBINER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/names.h"
#include "embedps/kernels/runtime/parallel.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// How n rows of an example become one vector: sum, sum / n, or sum / sqrt(n). kNone keeps the rows.
enum class Combiner { kSum, kMean, kSqrtn, kNone };
inline constexpr const char* kCombiners[] = {"sum", "mean", "sqrtn", "none"};

inline Status ParseCombiner(const std::string& name, Combiner* combiner) {
  return ParseName("combiner", kCombiners, name, combiner);
}

// Which rows a feature uses, and which example each belongs to.
struct FeaturePositions {
  const int32_t* positions = nullptr;
  int64_t num_positions = 0;
  const int64_t* splits = nullptr;  // [batch + 1]; null if every example has one id
  int64_t batch = 0;
  int64_t length = 1;  // vectors per example; other than 1 only for kNone with splits
  Combiner combiner = Combiner::kSum;
  int table = 0;
};

// Writes feature.batch * feature.length vectors [dim] to each feature's `out`. An example without
// ids gets zeros. For kNone with splits, an example has at most `length` ids: their rows come
// first, and zeros follow. rows[p] is the row at position p.
void Combine(const std::vector<FeaturePositions>& features, const std::vector<const float*>& rows,
             int dim, const ParallelFor& parallel, const std::vector<float*>& out);

// Computes the gradient of Combine for all features: adds to gradients[p] [dim] for each position
// p. The gradients must begin as zeros. One thread adds the features of one table, in order, so the
// sums do not depend on the number of threads.
void CombineGradient(const std::vector<FeaturePositions>& features,
                     const std::vector<const float*>& upstream, int dim, int num_tables,
                     const ParallelFor& parallel, const std::vector<float*>& gradients);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_COMBINER_H_
