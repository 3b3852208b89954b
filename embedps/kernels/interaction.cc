#include "embedps/kernels/interaction.h"

#include <algorithm>
#include <cstring>

#include "embedps/kernels/simd.h"

namespace embedps {
namespace {

constexpr int kLane = 16;  // floats; widths are padded to it so that inner loops have no remainder

// GCC lowers a lane to the widest registers of the clone it compiles: one of AVX-512, two of AVX2.
// Left to itself it keeps the sums in memory.
typedef float Lane
    __attribute__((vector_size(kLane * sizeof(float)), aligned(sizeof(float)), may_alias));

// By reference, so that no lane crosses a call in registers that some clones have not.
inline const Lane& LaneAt(const float* at) { return *reinterpret_cast<const Lane*>(at); }
inline Lane& LaneAt(float* at) { return *reinterpret_cast<Lane*>(at); }

int Padded(int n) { return (n + kLane - 1) / kLane * kLane; }

// One example. `transposed` is scratch [dim, Padded(n)]: with features along its rows, one multiply
// and add serves a lane of pairs, and nothing is summed across a register. `out` has room for a
// lane past its pairs: a row's last lane runs over into the next row, which is written after it.
EMBEDPS_SIMD void Forward(const float* const* __restrict x, int n, int dim,
                          float* __restrict transposed, float* __restrict out) {
  const int width = Padded(n);
  for (int j = 0; j < n; ++j) {
    for (int d = 0; d < dim; ++d) transposed[d * width + j] = x[j][d];
  }
  for (int i = 1; i < n; ++i) {
    const float* __restrict xi = x[i];
    for (int first = 0; first < i; first += kLane) {
      Lane sums = {};
      for (int d = 0; d < dim; ++d) sums += xi[d] * LaneAt(&transposed[d * width + first]);
      LaneAt(out + first) = sums;
    }
    out += i;
  }
}

// One example. x[j] and gradients[j] have Padded(dim) floats.
EMBEDPS_SIMD void Backward(const float* const* __restrict x, const float* __restrict upstream,
                           int n, int dim, float* const* gradients) {
  for (int i = 0; i < n; ++i) {
    for (int first = 0; first < dim; first += kLane) {
      Lane sums = {};
      const float* __restrict pair = upstream + NumPairs(i);  // (i, 0)
      for (int j = 0; j < i; ++j) sums += *pair++ * LaneAt(x[j] + first);
      for (int j = i + 1; j < n; ++j) sums += upstream[NumPairs(j) + i] * LaneAt(x[j] + first);
      LaneAt(gradients[i] + first) = sums;
    }
  }
}

EMBEDPS_SIMD void Widen(const Bf16* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = FromBf16(from[i]);
}

EMBEDPS_SIMD void Round(const float* __restrict from, int64_t n, Bf16* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(from[i]);
}

// Row `row` of `width` values as float32: where it lies, or widened into `copy`, which is used in
// any case when `must_copy`.
const float* Read(const InteractionMatrix& matrix, int64_t row, int64_t width, bool must_copy,
                  float* copy) {
  if (matrix.is_bf16) {
    Widen(static_cast<const Bf16*>(matrix.data) + row * width, width, copy);
    return copy;
  }
  const float* at = static_cast<const float*>(matrix.data) + row * width;
  if (!must_copy) return at;
  std::copy_n(at, width, copy);
  return copy;
}

void Write(const float* from, int64_t row, int64_t width, const InteractionMatrix& matrix) {
  if (matrix.is_bf16) {
    Round(from, width, static_cast<Bf16*>(matrix.data) + row * width);
  } else {
    std::memcpy(static_cast<float*>(matrix.data) + row * width, from, sizeof(float) * width);
  }
}

}  // namespace

void DotInteraction(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                    int64_t end, const InteractionMatrix& out) {
  const int n = static_cast<int>(features.size());
  const int64_t pairs = NumPairs(n);
  std::vector<float> transposed(static_cast<size_t>(dim) * Padded(n), 0.0f);
  std::vector<float> row(pairs + kLane), copies(static_cast<size_t>(n) * dim);
  std::vector<const float*> x(n);
  for (int64_t b = begin; b < end; ++b) {
    for (int i = 0; i < n; ++i) x[i] = Read(features[i], b, dim, false, &copies[i * dim]);
    Forward(x.data(), n, dim, transposed.data(), row.data());
    Write(row.data(), b, pairs, out);
  }
}

void DotInteractionGradient(const std::vector<InteractionMatrix>& features,
                            const InteractionMatrix& upstream, int dim, int64_t begin, int64_t end,
                            const std::vector<InteractionMatrix>& gradients) {
  const int n = static_cast<int>(features.size());
  const int64_t pairs = NumPairs(n);
  const int width = Padded(dim);
  // Vectors that do not fill their lanes go through padded copies.
  const bool pad = width != dim;
  std::vector<float> copies(2 * static_cast<size_t>(n) * width, 0.0f), g(pairs);
  std::vector<const float*> x(n);
  std::vector<float*> out(n);
  for (int64_t b = begin; b < end; ++b) {
    for (int i = 0; i < n; ++i) {
      x[i] = Read(features[i], b, dim, pad, &copies[i * width]);
      out[i] = pad || gradients[i].is_bf16 ? &copies[(n + i) * width]
                                           : static_cast<float*>(gradients[i].data) + b * dim;
    }
    Backward(x.data(), Read(upstream, b, pairs, false, g.data()), n, dim, out.data());
    for (int i = 0; i < n; ++i) {
      if (out[i] == &copies[(n + i) * width]) Write(out[i], b, dim, gradients[i]);
    }
  }
}

}  // namespace embedps
