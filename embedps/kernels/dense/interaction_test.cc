#include "embedps/kernels/dense/interaction.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

struct Example {
  std::vector<std::vector<float>> vectors;  // of each feature, [batch, dim]
  std::vector<InteractionMatrix> features;
};

Example MakeExample(int n, int batch, int dim) {
  Example example;
  for (int i = 0; i < n; ++i) {
    std::vector<float> values(batch * dim);
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = std::sin(static_cast<float>(1 + i + 7 * k));
    }
    example.vectors.push_back(std::move(values));
  }
  for (auto& values : example.vectors) example.features.push_back({values.data(), false});
  return example;
}

// Buffers have exactly the documented size, so the address sanitizer sees an access past the end.
void CheckAgainstPlainLoops(int n, int batch, int dim) {
  Example example = MakeExample(n, batch, dim);
  const int64_t pairs = NumPairs(n);
  std::vector<float> out(batch * pairs);
  // Two ranges, as with two threads.
  DotInteraction(example.features, dim, 0, batch / 2, {out.data(), false});
  DotInteraction(example.features, dim, batch / 2, batch, {out.data(), false});
  std::vector<float> upstream(batch * pairs);
  for (size_t k = 0; k < upstream.size(); ++k) upstream[k] = std::cos(static_cast<float>(k));
  std::vector<std::vector<float>> gradients(n, std::vector<float>(batch * dim));
  std::vector<InteractionMatrix> to;
  for (auto& g : gradients) to.push_back({g.data(), false});
  const InteractionMatrix from{upstream.data(), false};
  DotInteractionGradient(example.features, from, dim, 0, batch / 2, to);
  DotInteractionGradient(example.features, from, dim, batch / 2, batch, to);

  std::vector<std::vector<double>> expected(n, std::vector<double>(batch * dim));
  for (int b = 0; b < batch; ++b) {
    int64_t pair = b * pairs;
    for (int i = 1; i < n; ++i) {
      for (int j = 0; j < i; ++j, ++pair) {
        double dot = 0;
        for (int d = 0; d < dim; ++d) {
          const int at = b * dim + d;
          const double xi = example.vectors[i][at], xj = example.vectors[j][at];
          dot += xi * xj;
          expected[i][at] += upstream[pair] * xj;
          expected[j][at] += upstream[pair] * xi;
        }
        EXPECT_NEAR(out[pair], dot, 1e-4);
      }
    }
  }
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < batch * dim; ++k) EXPECT_NEAR(gradients[i][k], expected[i][k], 1e-4);
  }
}

// bfloat16 represents these vectors exactly, so the products of blocks equal those of float32.
void CheckBlocksAgainstFloat32(const BlockGemm& gemm, int n, int batch, int dim, bool is_bf16) {
  Example example = MakeExample(n, batch, dim);
  for (auto& vector : example.vectors) {
    for (float& x : vector) x = FromBf16(ToBf16(x));
  }
  const int64_t size = batch * NumPairs(n);
  std::vector<float> expected(size);
  DotInteraction(example.features, dim, 0, batch, {expected.data(), false});
  std::vector<float> sums(size);
  std::vector<Bf16> rounded(size), upstream(size);
  const InteractionMatrix out{is_bf16 ? static_cast<void*>(rounded.data()) : sums.data(), is_bf16};
  DotInteractionByBlocks(example.features, dim, 0, batch / 2, gemm, out);
  DotInteractionByBlocks(example.features, dim, batch / 2, batch, gemm, out);
  for (int64_t i = 0; i < size; ++i) {
    const float value = is_bf16 ? FromBf16(rounded[i]) : sums[i];
    EXPECT_NEAR(value, expected[i], 1e-5 + (is_bf16 ? std::fabs(expected[i]) / 200 : 0));
  }
  for (int64_t i = 0; i < size; ++i) upstream[i] = ToBf16(std::cos(static_cast<float>(i)));
  std::vector<std::vector<float>> gradients[2];
  for (auto& g : gradients) g.assign(n, std::vector<float>(batch * dim));
  std::vector<InteractionMatrix> to[2];
  for (int k = 0; k < 2; ++k) {
    for (auto& g : gradients[k]) to[k].push_back({g.data(), false});
  }
  const InteractionMatrix from{upstream.data(), true};
  DotInteractionGradient(example.features, from, dim, 0, batch, to[0]);
  DotInteractionGradientByBlocks(example.features, from, dim, 0, batch, gemm, to[1]);
  for (int i = 0; i < n; ++i) {
    for (int k = 0; k < batch * dim; ++k) EXPECT_NEAR(gradients[1][i][k], gradients[0][i][k], 1e-4);
  }
}

TEST(InteractionByBlocksEqualsFloat32) {
  for (const BlockGemm& gemm : BlockGemms()) {
    for (const int n : {2, 3, 16, 17, 27, 32}) {
      for (const int dim : {0, 1, 5, 16, 32, 33, 64}) {
        CheckBlocksAgainstFloat32(gemm, n, 5, dim, dim % 2 == 0);
      }
      CheckBlocksAgainstFloat32(gemm, n, 0, 5, true);
    }
  }
}

TEST(InteractionEqualsPlainLoops) {
  for (const int n : {2, 3, 16, 17, 27}) {
    for (const int dim : {0, 1, 5, 16, 17, 48}) CheckAgainstPlainLoops(n, 5, dim);
    CheckAgainstPlainLoops(n, 0, 5);
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
