// Merges the parts of a step: what several ranks compute of one state, each of its own batch. Sums
// are in rank order, in float32, and without fused products, so their bits depend on no CPU.
#ifndef EMBEDPS_KERNELS_LOOKUP_PARTS_H_
#define EMBEDPS_KERNELS_LOOKUP_PARTS_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/runtime/parallel.h"

namespace embedps {

// What one rank asks of a group of tables on one shard, with the gradients of these rows.
struct RowPart {
  const int64_t* ids = nullptr;  // each once per table, ordered by table
  int64_t num_ids = 0;
  const int32_t* splits = nullptr;    // [num_tables + 1], from 0 to num_ids
  const float* gradients = nullptr;   // [num_ids, dim]
  const int32_t* examples = nullptr;  // [num_ids], how many examples show each id; or null
  const uint8_t* absent = nullptr;    // [num_ids], 1 if admission decides about the id; or null
};

// The ids of all parts: each once per table, ordered by table, and within a table by first
// appearance in rank order.
struct MergedIds {
  std::vector<int64_t> ids;
  std::vector<int32_t> splits;                  // [num_tables + 1]
  std::vector<std::vector<int32_t>> positions;  // by part, the index of each of its ids in `ids`
};

// Returns each part's share of the examples, in float32. There must be an example.
std::vector<float> PartWeights(const std::vector<int64_t>& num_examples);

// Merges the ids of at least one part.
MergedIds MergeIds(const std::vector<RowPart>& parts, int num_tables, const ParallelFor& parallel);

// Sets out[i], [dim], to the sum over the parts that have merged.ids[i] of weight * gradient.
void SumRows(const std::vector<RowPart>& parts, const std::vector<float>& weights,
             const MergedIds& merged, int dim, const ParallelFor& parallel, float* out);

// Sets examples[i] to the sum over the parts that have merged.ids[i], and absent[i] to whether it
// is absent in one of them. All parts must have examples and absent.
void SumCounts(const std::vector<RowPart>& parts, const MergedIds& merged, int32_t* examples,
               uint8_t* absent);

// Sets out[i] to the sum over the parts of weight * values[i].
void SumDense(const std::vector<const float*>& parts, const std::vector<float>& weights, int64_t n,
              const ParallelFor& parallel, float* out);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_PARTS_H_
