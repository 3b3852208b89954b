#include "embedps/kernels/dense/interaction.h"

#include <algorithm>
#include <cstring>

#include "embedps/kernels/dense/panels.h"
#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

constexpr int kLane = 16;  // floats. Widths are padded to it, so inner loops have no remainder.

// GCC maps a lane to the widest registers of the clone that it compiles: one of AVX-512, two of
// AVX2. Without this type it keeps the sums in memory.
typedef float Lane
    __attribute__((vector_size(kLane * sizeof(float)), aligned(sizeof(float)), may_alias));

// They return references: a lane by value would use registers that some clones do not have.
inline const Lane& LaneAt(const float* at) { return *reinterpret_cast<const Lane*>(at); }
inline Lane& LaneAt(float* at) { return *reinterpret_cast<Lane*>(at); }

int Padded(int n) { return (n + kLane - 1) / kLane * kLane; }

// Vectors whose sums are computed together. A single sum would wait for each addition. With more
// vectors AVX2 runs out of registers.
constexpr int kRows = 4;

int PaddedRows(int n) { return (n + kRows - 1) / kRows * kRows; }

// Computes one example. Scratch: `transposed` [Padded(n) / kLane, Padded(dim), kLane] and
// `products` [PaddedRows(n), Padded(n)]. `transposed` has the features along its rows, so one
// multiply-add serves a lane of pairs and no sum goes across a register. `out` has room for one
// lane past its pairs: the last lane of a row overlaps the next row, which is written later.
EMBEDPS_SIMD void Forward(const float* const* __restrict x, int n, int dim,
                          float* __restrict transposed, float* __restrict products,
                          float* __restrict out) {
  const int width = Padded(n), depth = Padded(dim);
  for (int first = 0; first < n; first += kLane) {
    for (int d = 0; d < dim; d += kLane) {
      float block[kLane * kLane] = {};
      for (int j = first; j < std::min(first + kLane, n); ++j) {
        float* __restrict row = block + (j - first) * kLane;
        if (d + kLane <= dim) {
          LaneAt(row) = LaneAt(x[j] + d);
        } else {
          for (int k = 0; k < dim - d; ++k) row[k] = x[j][d + k];
        }
      }
      TransposeWords(reinterpret_cast<const uint32_t*>(block),
                     reinterpret_cast<uint32_t*>(transposed + first * depth + d * kLane));
    }
  }
  for (int i = 0; i < n; i += kRows) {
    const int last = std::min(i + kRows, n) - 1;
    const float* rows[kRows];
    for (int r = 0; r < kRows; ++r) rows[r] = x[std::min(i + r, last)];
    for (int first = 0; first < last; first += kLane) {
      const float* __restrict columns = transposed + first * depth;
      Lane sums[kRows] = {};
      for (int d = 0; d < dim; ++d) {
        const Lane& lane = LaneAt(columns + d * kLane);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r] += rows[r][d] * lane;
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) LaneAt(&products[(i + r) * width + first]) = sums[r];
    }
  }
  for (int i = 1; i < n; ++i) {
    for (int first = 0; first < i; first += kLane) {
      LaneAt(out + first) = LaneAt(products + i * width + first);
    }
    out += i;
  }
}

// Computes the gradients of one example. x[j] and gradients[j] have Padded(dim) floats. Scratch:
// `square` [PaddedRows(n), n], whose diagonal and rows past n are zero.
EMBEDPS_SIMD void Backward(const float* const* __restrict x, const float* __restrict upstream,
                           int n, int dim, float* __restrict square, float* const* gradients) {
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < i; ++j) square[i * n + j] = square[j * n + i] = *upstream++;
  }
  for (int i = 0; i < n; i += kRows) {
    const float* __restrict rows = square + i * n;
    for (int first = 0; first < dim; first += kLane) {
      Lane sums[kRows] = {};
      for (int j = 0; j < n; ++j) {
        const Lane& lane = LaneAt(x[j] + first);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sums[r] += rows[r * n + j] * lane;
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        if (i + r < n) LaneAt(gradients[i + r] + first) = sums[r];
      }
    }
  }
}

// Returns row `row` of `width` values as float32: in place, or in `copy` if it is bfloat16 or
// `must_copy`.
const float* Read(const InteractionMatrix& matrix, int64_t row, int64_t width, bool must_copy,
                  float* copy) {
  if (matrix.is_bf16) {
    WidenBf16(static_cast<const Bf16*>(matrix.data) + row * width, width, copy);
    return copy;
  }
  const float* at = static_cast<const float*>(matrix.data) + row * width;
  if (!must_copy) return at;
  std::copy_n(at, width, copy);
  return copy;
}

void Write(const float* from, int64_t row, int64_t width, const InteractionMatrix& matrix) {
  if (width == 0) return;  // the matrix may have no data
  if (matrix.is_bf16) {
    RoundToBf16(from, width, static_cast<Bf16*>(matrix.data) + row * width);
  } else {
    std::memcpy(static_cast<float*>(matrix.data) + row * width, from, sizeof(float) * width);
  }
}

// Reads `width` values of row `row`, from `first` on, as bfloat16.
void ReadBf16(const InteractionMatrix& matrix, int64_t row, int dim, int first, int width,
              Bf16* to) {
  const int64_t at = row * dim + first;
  if (matrix.is_bf16) {
    std::memcpy(to, static_cast<const Bf16*>(matrix.data) + at, sizeof(Bf16) * width);
  } else {
    RoundToBf16(static_cast<const float*>(matrix.data) + at, width, to);
  }
}

// Packs an example's vectors into a left panel, whose rows are the features.
class VectorPanel {
 public:
  VectorPanel(const std::vector<InteractionMatrix>& features, int dim)
      : features_(features), dim_(dim), values_((NumBlocks(dim) + 1) * kStepValues) {}
  const Bf16* Read(int64_t example) {
    for (int first = 0; first < dim_; first += kBlock) {
      const int width = std::min(kBlock, dim_ - first);
      Bf16* step = panel() + first * kBlock;
      for (size_t i = 0; i < features_.size(); ++i) {
        ReadBf16(features_[i], example, dim_, first, width, step + i * kBlock);
      }
    }
    return panel();
  }

 private:
  Bf16* panel() { return AlignedBf16(values_.data()); }
  const std::vector<InteractionMatrix>& features_;
  const int dim_;
  std::vector<Bf16> values_;
};

// Sets g [32][32] to the pairs (i, j) with j < i, and to zeros elsewhere. 32 values past the end of
// `pairs` must be readable.
EMBEDPS_SIMD void SpreadPairs(const Bf16* __restrict pairs, int n, Bf16* __restrict g) {
  for (int i = 0; i < n; ++i) {
    const Bf16* __restrict from = pairs + NumPairs(i);
    for (int j = 0; j < kBlock; ++j) g[i * kBlock + j] = j < i ? from[j] : Bf16{0};
  }
}

EMBEDPS_SIMD void AddTranspose(const Bf16* __restrict transposed, Bf16* __restrict g) {
  for (int i = 0; i < kStepValues; ++i) g[i] |= transposed[i];
}

}  // namespace

void DotInteraction(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                    int64_t end, const InteractionMatrix& out) {
  const int n = static_cast<int>(features.size());
  const int64_t pairs = NumPairs(n);
  std::vector<float> transposed(static_cast<size_t>(Padded(dim)) * Padded(n));
  std::vector<float> products(static_cast<size_t>(PaddedRows(n)) * Padded(n));
  std::vector<float> row(pairs + kLane), copies(static_cast<size_t>(n) * dim);
  std::vector<const float*> x(n);
  for (int64_t b = begin; b < end; ++b) {
    for (int i = 0; i < n; ++i) x[i] = Read(features[i], b, dim, false, copies.data() + i * dim);
    Forward(x.data(), n, dim, transposed.data(), products.data(), row.data());
    Write(row.data(), b, pairs, out);
  }
}

void DotInteractionGradient(const std::vector<InteractionMatrix>& features,
                            const InteractionMatrix& upstream, int dim, int64_t begin, int64_t end,
                            const std::vector<InteractionMatrix>& gradients) {
  const int n = static_cast<int>(features.size());
  const int64_t pairs = NumPairs(n);
  const int width = Padded(dim);
  // Vectors that do not fill their lanes need padded copies.
  const bool pad = width != dim;
  std::vector<float> copies(2 * static_cast<size_t>(n) * width, 0.0f), g(pairs);
  std::vector<float> square(static_cast<size_t>(PaddedRows(n)) * n, 0.0f);
  std::vector<const float*> x(n);
  std::vector<float*> out(n);
  for (int64_t b = begin; b < end; ++b) {
    for (int i = 0; i < n; ++i) {
      x[i] = Read(features[i], b, dim, pad, copies.data() + i * width);
      out[i] = pad || gradients[i].is_bf16 ? copies.data() + (n + i) * width
                                           : static_cast<float*>(gradients[i].data) + b * dim;
    }
    Backward(x.data(), Read(upstream, b, pairs, false, g.data()), n, dim, square.data(),
             out.data());
    for (int i = 0; i < n; ++i) {
      if (out[i] == copies.data() + (n + i) * width) Write(out[i], b, dim, gradients[i]);
    }
  }
}

void DotInteractionByBlocks(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                            int64_t end, const BlockGemm& gemm, const InteractionMatrix& out) {
  const int n = static_cast<int>(features.size());
  const int64_t steps = NumBlocks(dim), pairs = NumPairs(n);
  VectorPanel vectors(features, dim);
  std::vector<Bf16> right_values((steps + 1) * kStepValues), row(pairs + kBlock);
  std::vector<float> wide(out.is_bf16 ? 0 : pairs);
  Bf16* right = AlignedBf16(right_values.data());
  alignas(64) float sums[kStepValues];
  alignas(64) Bf16 rounded[kStepValues];
  gemm.begin();
  for (int64_t b = begin; b < end; ++b) {
    const Bf16* left = vectors.Read(b);
    for (int64_t half = 0; half < 2 * steps; ++half) {
      TransposeWords(reinterpret_cast<const uint32_t*>(left + half * kStepValues / 2),
                     reinterpret_cast<uint32_t*>(right + half * kStepValues / 2));
    }
    gemm.multiply(left, right, {dim, n, n}, sums);
    if (!out.is_bf16) {
      for (int i = 1; i < n; ++i) std::copy_n(sums + i * kBlock, i, &wide[NumPairs(i)]);
      Write(wide.data(), b, pairs, out);
      continue;
    }
    gemm.round(sums, rounded);
    // A row overlaps the next one, which is written later.
    for (int i = 1; i < n; ++i) {
      std::memcpy(&row[NumPairs(i)], rounded + i * kBlock, sizeof(Bf16) * kBlock);
    }
    std::memcpy(static_cast<Bf16*>(out.data) + b * pairs, row.data(), sizeof(Bf16) * pairs);
  }
  gemm.end();
}

void DotInteractionGradientByBlocks(const std::vector<InteractionMatrix>& features,
                                    const InteractionMatrix& upstream, int dim, int64_t begin,
                                    int64_t end, const BlockGemm& gemm,
                                    const std::vector<InteractionMatrix>& gradients) {
  const int n = static_cast<int>(features.size());
  const int pairs = static_cast<int>(NumPairs(n));
  VectorPanel vectors(features, dim);
  std::vector<Bf16> row(pairs + kBlock);
  std::vector<float> out(static_cast<size_t>(n) * NumBlocks(dim) * kBlock);
  alignas(64) float sums[kStepValues];
  alignas(64) Bf16 g[kStepValues] = {}, transposed[kStepValues], right[kStepValues];
  gemm.begin();
  for (int64_t b = begin; b < end; ++b) {
    ReadBf16(upstream, b, pairs, 0, pairs, row.data());
    SpreadPairs(row.data(), n, g);
    TransposeLeft(g, transposed);
    AddTranspose(transposed, g);
    const Bf16* left = vectors.Read(b);
    const int stride = static_cast<int>(NumBlocks(dim)) * kBlock;
    for (int first = 0; first < dim; first += kBlock) {
      gemm.left_to_right(left + first * kBlock, right, nullptr);
      gemm.multiply(g, right, {n, n, std::min(kBlock, dim - first)}, sums);
      for (int i = 0; i < n; ++i) {
        std::memcpy(&out[i * stride + first], sums + i * kBlock, sizeof(float) * kBlock);
      }
    }
    for (int i = 0; i < n; ++i) Write(out.data() + i * stride, b, dim, gradients[i]);
  }
  gemm.end();
}

}  // namespace embedps
