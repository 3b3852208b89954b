#include "embedps/kernels/lookup/parts.h"

#include <algorithm>
#include <numeric>

#include "embedps/kernels/lookup/id_numbers.h"
#include "embedps/kernels/runtime/simd.h"

// A fused product would round once where other CPUs round twice.
#if defined(__GNUC__) && !defined(__clang__)
#define EMBEDPS_NOT_FUSED __attribute__((optimize("fp-contract=off")))
#else
#define EMBEDPS_NOT_FUSED
#endif

namespace embedps {
namespace {

EMBEDPS_SIMD EMBEDPS_NOT_FUSED void SetScaled(int64_t n, float weight,
                                              const float* __restrict values,
                                              float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = weight * values[i];
}

EMBEDPS_SIMD EMBEDPS_NOT_FUSED void AddScaled(int64_t n, float weight,
                                              const float* __restrict values,
                                              float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] += weight * values[i];
}

constexpr int64_t kAhead = 16;  // rows to prefetch before they are used

// Adds the rows of one table of a part. The positions before `seen` have a sum already; new ones
// come in order. Returns the first position that has none.
EMBEDPS_SIMD EMBEDPS_NOT_FUSED int32_t AddRows(int dim, int64_t n, float weight,
                                               const int32_t* __restrict positions,
                                               const float* __restrict gradients, int32_t seen,
                                               float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(out + int64_t{positions[i + kAhead]} * dim, 1);
    const float* __restrict gradient = gradients + i * dim;
    float* __restrict row = out + int64_t{positions[i]} * dim;
    if (positions[i] >= seen) {
      for (int d = 0; d < dim; ++d) row[d] = weight * gradient[d];
      seen = positions[i] + 1;
    } else {
      for (int d = 0; d < dim; ++d) row[d] += weight * gradient[d];
    }
  }
  return seen;
}

// Merges the ids of one table. Sets positions to indices into the table's merged ids.
void MergeTable(const std::vector<RowPart>& parts, int table, std::vector<int64_t>* ids,
                std::vector<std::vector<int32_t>>* positions) {
  int64_t num_ids = 0;
  for (const RowPart& part : parts) num_ids += part.splits[table + 1] - part.splits[table];
  IdNumbers numbers(num_ids);
  ids->reserve(num_ids);
  for (size_t r = 0; r < parts.size(); ++r) {
    for (int32_t i = parts[r].splits[table]; i < parts[r].splits[table + 1]; ++i) {
      (*positions)[r][i] = numbers.Add(parts[r].ids[i], ids);
    }
  }
}

int64_t CostOfTable(const std::vector<RowPart>& parts, int num_tables, int64_t cost_of_id) {
  int64_t num_ids = 0;
  for (const RowPart& part : parts) num_ids += part.num_ids;
  return num_tables == 0 ? 0 : cost_of_id * num_ids / num_tables;
}

}  // namespace

std::vector<float> PartWeights(const std::vector<int64_t>& num_examples) {
  const auto sum =
      static_cast<float>(std::accumulate(num_examples.begin(), num_examples.end(), int64_t{0}));
  std::vector<float> weights;
  for (const int64_t n : num_examples) weights.push_back(static_cast<float>(n) / sum);
  return weights;
}

MergedIds MergeIds(const std::vector<RowPart>& parts, int num_tables, const ParallelFor& parallel) {
  MergedIds merged;
  for (const RowPart& part : parts) merged.positions.emplace_back(part.num_ids);
  std::vector<std::vector<int64_t>> ids(num_tables);
  parallel(num_tables, CostOfTable(parts, num_tables, 20), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      MergeTable(parts, static_cast<int>(t), &ids[t], &merged.positions);
    }
  });
  merged.splits.assign(num_tables + 1, 0);
  for (int t = 0; t < num_tables; ++t) {
    merged.splits[t + 1] = merged.splits[t] + static_cast<int32_t>(ids[t].size());
  }
  merged.ids.reserve(merged.splits[num_tables]);
  for (const std::vector<int64_t>& of_table : ids) {
    merged.ids.insert(merged.ids.end(), of_table.begin(), of_table.end());
  }
  for (size_t r = 0; r < parts.size(); ++r) {
    for (int t = 0; t < num_tables; ++t) {
      for (int32_t i = parts[r].splits[t]; i < parts[r].splits[t + 1]; ++i) {
        merged.positions[r][i] += merged.splits[t];
      }
    }
  }
  return merged;
}

void SumRows(const std::vector<RowPart>& parts, const std::vector<float>& weights,
             const MergedIds& merged, int dim, const ParallelFor& parallel, float* out) {
  const int num_tables = static_cast<int>(merged.splits.size()) - 1;
  parallel(num_tables, CostOfTable(parts, num_tables, 10 + dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int32_t seen = merged.splits[t];
      for (size_t r = 0; r < parts.size(); ++r) {
        const int32_t first = parts[r].splits[t], n = parts[r].splits[t + 1] - first;
        seen = AddRows(dim, n, weights[r], merged.positions[r].data() + first,
                       parts[r].gradients + int64_t{first} * dim, seen, out);
      }
    }
  });
}

void SumCounts(const std::vector<RowPart>& parts, const MergedIds& merged, int32_t* examples,
               uint8_t* absent) {
  std::fill_n(examples, merged.ids.size(), 0);
  std::fill_n(absent, merged.ids.size(), uint8_t{0});
  for (size_t r = 0; r < parts.size(); ++r) {
    for (int64_t i = 0; i < parts[r].num_ids; ++i) {
      const int32_t at = merged.positions[r][i];
      examples[at] += parts[r].examples[i];
      absent[at] |= parts[r].absent[i];
    }
  }
}

void SumDense(const std::vector<const float*>& parts, const std::vector<float>& weights, int64_t n,
              const ParallelFor& parallel, float* out) {
  parallel(n, static_cast<int64_t>(parts.size()), [&](int64_t begin, int64_t end) {
    SetScaled(end - begin, weights[0], parts[0] + begin, out + begin);
    for (size_t r = 1; r < parts.size(); ++r) {
      AddScaled(end - begin, weights[r], parts[r] + begin, out + begin);
    }
  });
}

}  // namespace embedps
