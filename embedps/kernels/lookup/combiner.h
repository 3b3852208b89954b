// The worker's other half of a lookup: rows to one vector a feature and example, and back.
#ifndef EMBEDPS_KERNELS_LOOKUP_COMBINER_H_
#define EMBEDPS_KERNELS_LOOKUP_COMBINER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/parallel.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// What makes one vector of an example's rows: their sum, sum / n, or sum / sqrt(n).
enum class Combiner { kSum, kMean, kSqrtn };

Status ParseCombiner(const std::string& name, Combiner* combiner);

// A feature's positions in the rows, and to which example each belongs.
struct FeaturePositions {
  const int32_t* positions = nullptr;
  int64_t num_positions = 0;
  const int64_t* splits = nullptr;  // batch + 1; null when every example has one id
  int64_t batch = 0;
  Combiner combiner = Combiner::kSum;
  int table = 0;
};

// Writes feature.batch vectors [dim] to each feature's `out`; an example without ids gets zeros.
// rows[p] is the row at position p.
void Combine(const std::vector<FeaturePositions>& features, const std::vector<const float*>& rows,
             int dim, const ParallelFor& parallel, const std::vector<float*>& out);

// The gradient of Combine for all features at once: adds to gradients[p] [dim], which begin as
// zeros, for each position p. Features of one table are added by one thread, in order, so the sums
// do not depend on the number of threads.
void CombineGradient(const std::vector<FeaturePositions>& features,
                     const std::vector<const float*>& upstream, int dim, int num_tables,
                     const ParallelFor& parallel, const std::vector<float*>& gradients);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_COMBINER_H_
