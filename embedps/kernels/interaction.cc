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

}  // namespace

void DotInteraction(const std::vector<const float*>& features, int dim, int64_t begin, int64_t end,
                    float* out) {
  const int n = static_cast<int>(features.size());
  const int64_t pairs = NumPairs(n);
  std::vector<float> transposed(static_cast<size_t>(dim) * Padded(n), 0.0f);
  std::vector<float> row(pairs + kLane);
  std::vector<const float*> x(n);
  for (int64_t b = begin; b < end; ++b) {
    for (int i = 0; i < n; ++i) x[i] = features[i] + b * dim;
    Forward(x.data(), n, dim, transposed.data(), row.data());
    std::memcpy(out + b * pairs, row.data(), sizeof(float) * pairs);
  }
}

void DotInteractionGradient(const std::vector<const float*>& features, const float* upstream,
                            int dim, int64_t begin, int64_t end,
                            const std::vector<float*>& gradients) {
  const int n = static_cast<int>(features.size());
  const int64_t pairs = NumPairs(n);
  const int width = Padded(dim);
  // Vectors that do not fill their lanes go through padded copies.
  const bool copy = width != dim;
  std::vector<float> padded(copy ? 2 * static_cast<size_t>(n) * width : 0, 0.0f);
  std::vector<const float*> x(n);
  std::vector<float*> out(n);
  for (int64_t b = begin; b < end; ++b) {
    for (int i = 0; i < n; ++i) {
      x[i] = features[i] + b * dim;
      out[i] = gradients[i] + b * dim;
      if (copy) {
        std::copy_n(x[i], dim, &padded[i * width]);
        x[i] = &padded[i * width];
        out[i] = &padded[(n + i) * width];
      }
    }
    Backward(x.data(), upstream + b * pairs, n, dim, out.data());
    for (int i = 0; copy && i < n; ++i) std::copy_n(out[i], dim, gradients[i] + b * dim);
  }
}

}  // namespace embedps
