#include "embedps/kernels/lookup/combiner.h"

#include <algorithm>
#include <cmath>

#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

float Scale(Combiner combiner, int64_t n) {
  switch (combiner) {
    case Combiner::kSum:
    case Combiner::kNone:
      return 1;
    case Combiner::kMean:
      return 1 / static_cast<float>(n);
    case Combiner::kSqrtn:
      return 1 / std::sqrt(static_cast<float>(n));
  }
  return 1;
}

EMBEDPS_SIMD void AddRow(int dim, const float* __restrict row, float* __restrict sum) {
  for (int i = 0; i < dim; ++i) sum[i] += row[i];
}

EMBEDPS_SIMD void AddScaledRow(int dim, float scale, const float* __restrict row,
                               float* __restrict sum) {
  for (int i = 0; i < dim; ++i) sum[i] += scale * row[i];
}

constexpr int64_t kAhead = 16;  // rows to prefetch before they are used

// Sets out[i] to the row at positions[i].
EMBEDPS_SIMD void CopyRows(int dim, int64_t n, const int32_t* __restrict positions,
                           const float* const* rows, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(rows[positions[i + kAhead]]);
    const float* __restrict row = rows[positions[i]];
    for (int d = 0; d < dim; ++d) out[i * dim + d] = row[d];
  }
}

// Adds gradients[i] to the row at positions[i].
EMBEDPS_SIMD void AddRows(int dim, int64_t n, const int32_t* __restrict positions,
                          const float* gradients, float* const* rows) {
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(rows[positions[i + kAhead]], 1);
    const float* __restrict gradient = gradients + i * dim;
    float* __restrict row = rows[positions[i]];
    for (int d = 0; d < dim; ++d) row[d] += gradient[d];
  }
}

void CombineExamples(const FeaturePositions& feature, const std::vector<const float*>& rows,
                     int dim, int64_t begin, int64_t end, float* out) {
  if (feature.splits == nullptr) {
    CopyRows(dim, end - begin, feature.positions + begin, rows.data(), out + begin * dim);
    return;
  }
  if (feature.combiner == Combiner::kNone) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = feature.splits[b], n = feature.splits[b + 1] - first;
      float* to = out + b * feature.length * dim;
      CopyRows(dim, n, feature.positions + first, rows.data(), to);
      std::fill_n(to + n * dim, (feature.length - n) * dim, 0.0f);
    }
    return;
  }
  for (int64_t b = begin; b < end; ++b) {
    float* sum = out + b * dim;
    std::fill_n(sum, dim, 0.0f);
    const int64_t first = feature.splits[b], last = feature.splits[b + 1];
    for (int64_t i = first; i < last; ++i) AddRow(dim, rows[feature.positions[i]], sum);
    if (last - first > 1 && feature.combiner != Combiner::kSum) {
      const float scale = Scale(feature.combiner, last - first);
      for (int i = 0; i < dim; ++i) sum[i] *= scale;
    }
  }
}

}  // namespace

void Combine(const std::vector<FeaturePositions>& features, const std::vector<const float*>& rows,
             int dim, const ParallelFor& parallel, const std::vector<float*>& out) {
  int64_t num_examples = 0, num_positions = 0;
  for (const FeaturePositions& f : features) {
    num_examples += f.batch;
    // Zeros cost about as much as copies.
    num_positions += f.length > 1 ? f.batch * f.length : f.num_positions;
  }
  const int64_t cost = 10 + (num_examples == 0 ? 0 : dim * num_positions / num_examples);
  // The examples of all features, numbered in one sequence.
  parallel(num_examples, cost, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (size_t k = 0; k < features.size(); first += features[k].batch, ++k) {
      const int64_t from = std::max<int64_t>(begin - first, 0);
      const int64_t to = std::min(end - first, features[k].batch);
      if (from < to) CombineExamples(features[k], rows, dim, from, to, out[k]);
    }
  });
}

void CombineGradient(const std::vector<FeaturePositions>& features,
                     const std::vector<const float*>& upstream, int dim, int num_tables,
                     const ParallelFor& parallel, const std::vector<float*>& gradients) {
  int64_t num_positions = 0;
  for (const FeaturePositions& f : features) num_positions += f.num_positions;
  const int64_t cost = num_tables == 0 ? 0 : (10 + dim) * num_positions / num_tables;
  parallel(num_tables, cost, [&](int64_t begin, int64_t end) {
    for (size_t k = 0; k < features.size(); ++k) {
      const FeaturePositions& f = features[k];
      if (f.table < begin || f.table >= end) continue;
      if (f.splits == nullptr) {
        AddRows(dim, f.batch, f.positions, upstream[k], gradients.data());
        continue;
      }
      if (f.combiner == Combiner::kNone) {
        for (int64_t b = 0; b < f.batch; ++b) {
          const int64_t first = f.splits[b];
          AddRows(dim, f.splits[b + 1] - first, f.positions + first,
                  upstream[k] + b * f.length * dim, gradients.data());
        }
        continue;
      }
      for (int64_t b = 0; b < f.batch; ++b) {
        const float* g = upstream[k] + b * dim;
        const int64_t first = f.splits[b], last = f.splits[b + 1];
        if (first == last) continue;
        const float scale = Scale(f.combiner, last - first);
        for (int64_t i = first; i < last; ++i) {
          AddScaledRow(dim, scale, g, gradients[f.positions[i]]);
        }
      }
    }
  });
}

}  // namespace embedps
