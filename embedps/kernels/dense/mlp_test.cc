#include "embedps/kernels/dense/mlp.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

// Returns a repeatable number in [-1, 1).
float Noise(uint64_t seed, int64_t i) {
  uint64_t x = (seed << 32) + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
  return static_cast<float>(x >> 40) * 0x1p-23f - 1;
}

std::vector<float> NoiseVector(uint64_t seed, int64_t size, float scale = 1) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = scale * Noise(seed, i);
  return values;
}

double Rounded(double x) { return FromBf16(ToBf16(static_cast<float>(x))); }

TEST(ABfloat16IsTheNearestWithTiesToEven) {
  for (int64_t i = 0; i < 100000; ++i) {
    const float x = Noise(1, i) * std::pow(10.0f, 30 * Noise(2, i));
    const float rounded = FromBf16(ToBf16(x));
    const float below = FromBf16(static_cast<Bf16>(ToBf16(x) - 1));
    const float above = FromBf16(static_cast<Bf16>(ToBf16(x) + 1));
    EXPECT_TRUE(std::fabs(rounded - x) <= std::min(std::fabs(below - x), std::fabs(above - x)));
  }
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f), ToBf16(1.0f));              // a tie: down to the even one
  EXPECT_EQ(FromBf16(ToBf16(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);  // a tie: up to the even one
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(NAN))));
  EXPECT_TRUE(std::isinf(FromBf16(ToBf16(INFINITY))));
}

struct AlignedBf16 {
  explicit AlignedBf16(int64_t size)
      : data(static_cast<Bf16*>(std::aligned_alloc(64, (size * 2 + 64) / 64 * 64))) {}
  ~AlignedBf16() { std::free(data); }
  AlignedBf16(const AlignedBf16&) = delete;
  AlignedBf16& operator=(const AlignedBf16&) = delete;
  Bf16* data;
};

// Returns the offset of value (k, n) in a step of a right panel.
int InRight(int k, int n) { return n / 16 * 512 + k / 2 * 32 + n % 16 * 2 + k % 2; }

// Checks a product, plain and turned, of panels that are zero past the extent.
void CheckProduct(const BlockGemm& gemm, const Extent& extent) {
  const int64_t steps = NumBlocks(extent.inner);
  AlignedBf16 left(steps * kStepValues), right(steps * kStepValues);
  AlignedBf16 upright(kStepValues), turned(steps * kStepValues);
  std::vector<double> expected(kStepValues, 0.0);
  for (int64_t s = 0; s < steps; ++s) {
    Bf16* l = left.data + s * kStepValues;
    Bf16* r = right.data + s * kStepValues;
    for (int k = 0; k < kBlock; ++k) {
      const bool within = s * kBlock + k < extent.inner;
      for (int m = 0; m < kBlock; ++m) {
        const float x = within && m < extent.rows ? Noise(1 + s, m * kBlock + k) : 0;
        const float y = within && m < extent.columns ? Noise(99 + s, m * kBlock + k) : 0;
        l[m * kBlock + k] = upright.data[k * kBlock + m] = ToBf16(x);
        r[InRight(k, m)] = ToBf16(y);
      }
    }
    gemm.turn(upright.data, turned.data + s * kStepValues);
    for (int m = 0; m < kBlock; ++m) {
      for (int n = 0; n < kBlock; ++n) {
        for (int k = 0; k < kBlock; ++k) {
          expected[m * kBlock + n] +=
              double{FromBf16(l[m * kBlock + k])} * FromBf16(r[InRight(k, n)]);
        }
      }
    }
  }
  for (const bool by_turned : {false, true}) {
    std::vector<float> sums(kStepValues, NAN);
    gemm.begin();
    if (by_turned) {
      gemm.multiply_turned(turned.data, right.data, extent, sums.data());
    } else {
      gemm.multiply(left.data, right.data, extent, sums.data());
    }
    gemm.end();
    for (int i = 0; i < kStepValues; ++i) EXPECT_NEAR(sums[i], expected[i], 1e-4);
  }
}

TEST(EveryBlockProductEqualsPlainLoops) {
  for (const BlockGemm& gemm : BlockGemms()) {
    for (const int64_t inner : {0, 1, 2, 13, 31, 32, 33, 64, 215}) {
      for (const int rows : {1, 8, 9, 16, 27, 32}) {
        for (const int columns : {1, 16, 17, 32}) CheckProduct(gemm, {inner, rows, columns});
      }
    }
  }
}

TEST(EveryRightPanelOfALeftOneHasItsValuesAndSums) {
  for (const BlockGemm& gemm : BlockGemms()) {
    AlignedBf16 left(kStepValues), right(kStepValues), again(kStepValues);
    for (int i = 0; i < kStepValues; ++i) left.data[i] = ToBf16(Noise(5, i));
    std::vector<float> sums(kBlock, NAN);
    gemm.left_to_right(left.data, right.data, sums.data());
    gemm.left_to_right(left.data, again.data, nullptr);
    for (int n = 0; n < kBlock; ++n) {
      double sum = 0;
      for (int k = 0; k < kBlock; ++k) {
        EXPECT_EQ(right.data[InRight(k, n)], left.data[k * kBlock + n]);
        EXPECT_EQ(again.data[InRight(k, n)], left.data[k * kBlock + n]);
        sum += FromBf16(left.data[k * kBlock + n]);
      }
      EXPECT_NEAR(sums[n], sum, 1e-5);
    }
  }
}

TEST(EveryRoundingEqualsThePlainOne) {
  for (const BlockGemm& gemm : BlockGemms()) {
    std::vector<float> sums = NoiseVector(3, kStepValues);
    for (int i = 0; i < kStepValues; ++i) sums[i] *= std::pow(10.0f, 30 * Noise(4, i));
    sums[1] = 1.0f + 0x1p-8f;
    sums[2] = 1.0f + 0x3p-8f;
    sums[3] = INFINITY;
    sums[4] = NAN;
    std::vector<Bf16> rounded(kStepValues);
    gemm.round(sums.data(), rounded.data());
    for (int i = 0; i < kStepValues; ++i) {
      if (i != 4) EXPECT_EQ(rounded[i], ToBf16(sums[i]));
    }
    EXPECT_TRUE(std::isnan(FromBf16(rounded[4])));
  }
}

// A ParallelFor on two threads.
void TwoThreads(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  std::thread other([&] { work(0, n / 2); });
  work(n / 2, n);
  other.join();
}

struct Case {
  std::vector<int> widths;
  bool final_relu;
  int64_t batch;
};

// Buffers have exactly the documented size, so the address sanitizer sees an access past the end.
void CheckAgainstPlainLoops(const BlockGemm& gemm, const Case& c) {
  const int num_layers = static_cast<int>(c.widths.size()) - 1;
  const int64_t batch = c.batch;
  std::vector<std::vector<float>> kernels, biases, kernel_gradients, bias_gradients;
  std::vector<MlpLayer> layers;
  std::vector<MlpLayerGradient> gradients;
  for (int l = 0; l < num_layers; ++l) {
    const int in = c.widths[l], out = c.widths[l + 1];
    kernels.push_back(NoiseVector(10 + l, in * out, 2 / std::sqrt(static_cast<float>(in))));
    biases.push_back(NoiseVector(20 + l, out, 0.5f));
    kernel_gradients.emplace_back(in * out, NAN);
    bias_gradients.emplace_back(out, NAN);
  }
  for (int l = 0; l < num_layers; ++l) {
    layers.push_back({c.widths[l], c.widths[l + 1], kernels[l].data(), biases[l].data()});
    gradients.push_back({kernel_gradients[l].data(), bias_gradients[l].data()});
  }
  const Mlp mlp(layers, c.final_relu, gemm);
  std::vector<float> x = NoiseVector(1, batch * c.widths[0]), dx(x.size(), NAN);
  std::vector<float> upstream = NoiseVector(2, batch * c.widths.back());
  std::vector<float> out(upstream.size(), NAN);
  AlignedBf16 saved(mlp.SavedSize(batch)), forward(mlp.ForwardScratchSize());
  AlignedBf16 backward(mlp.BackwardScratchSize(batch));
  const MlpMatrix input{x.data(), false, c.widths[0]};
  mlp.Forward({input}, batch, TwoThreads, forward.data, saved.data,
              {out.data(), false, c.widths.back()});
  mlp.Backward({upstream.data(), false, c.widths.back()}, saved.data, batch, TwoThreads,
               backward.data, {{dx.data(), false, c.widths[0]}}, gradients);
  // The other gradients are the same without the inputs' gradients.
  std::vector<std::vector<float>> kernels_alone = kernel_gradients, biases_alone = bias_gradients;
  std::vector<MlpLayerGradient> alone;
  for (int l = 0; l < num_layers; ++l) {
    std::fill(kernels_alone[l].begin(), kernels_alone[l].end(), NAN);
    std::fill(biases_alone[l].begin(), biases_alone[l].end(), NAN);
    alone.push_back({kernels_alone[l].data(), biases_alone[l].data()});
  }
  mlp.Backward({upstream.data(), false, c.widths.back()}, saved.data, batch, TwoThreads,
               backward.data, {}, alone);
  for (int l = 0; l < num_layers; ++l) {
    EXPECT_TRUE(kernels_alone[l] == kernel_gradients[l]);
    EXPECT_TRUE(biases_alone[l] == bias_gradients[l]);
  }

  std::vector<std::vector<double>> activations(1);
  for (const float v : x) activations[0].push_back(Rounded(v));
  for (int l = 0; l < num_layers; ++l) {
    const int in = c.widths[l], width = c.widths[l + 1];
    const bool last = l + 1 == num_layers;
    activations.emplace_back(batch * width);
    for (int64_t b = 0; b < batch; ++b) {
      for (int n = 0; n < width; ++n) {
        double sum = biases[l][n];
        for (int k = 0; k < in; ++k) {
          sum += activations[l][b * in + k] * Rounded(kernels[l][k * width + n]);
        }
        if (!last || c.final_relu) sum = std::max(sum, 0.0);
        activations[l + 1][b * width + n] = last ? sum : Rounded(sum);
      }
    }
  }
  for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], activations.back()[i], 0.03);

  std::vector<double> gradient;
  for (size_t i = 0; i < upstream.size(); ++i) {
    const bool off = c.final_relu && activations.back()[i] <= 0;
    gradient.push_back(off ? 0 : Rounded(upstream[i]));
  }
  for (int l = num_layers - 1; l >= 0; --l) {
    const int in = c.widths[l], width = c.widths[l + 1];
    std::vector<double> next(batch * in), kernel(in * width), bias(width);
    for (int64_t b = 0; b < batch; ++b) {
      for (int n = 0; n < width; ++n) {
        const double g = gradient[b * width + n];
        bias[n] += g;
        for (int k = 0; k < in; ++k) {
          kernel[k * width + n] += g * activations[l][b * in + k];
          next[b * in + k] += g * Rounded(kernels[l][k * width + n]);
        }
      }
    }
    // Sums of `batch` terms, of which some are ties of the rounding.
    const double tolerance = 0.02 * std::sqrt(static_cast<double>(batch)) + 0.02;
    for (int n = 0; n < width; ++n) EXPECT_NEAR(bias_gradients[l][n], bias[n], tolerance);
    for (int i = 0; i < in * width; ++i) {
      EXPECT_NEAR(kernel_gradients[l][i], kernel[i], tolerance);
    }
    for (int64_t i = 0; i < batch * in; ++i) {
      if (l == 0) EXPECT_NEAR(dx[i], next[i], 0.05);
      next[i] = l > 0 && activations[l][i] <= 0 ? 0 : Rounded(next[i]);
    }
    gradient = next;
  }
}

TEST(EveryMlpEqualsPlainLoops) {
  const std::vector<Case> cases = {
      {{13, 40, 16}, true, 70},  {{33, 64, 1}, false, 64},     {{3, 2}, true, 1},
      {{32, 32, 32}, false, 33}, {{70, 65, 31, 5}, true, 600}, {{5, 40, 2}, false, 0},
      {{0, 40, 2}, true, 70},    {{0, 3}, false, 33},          {{0, 3}, true, 0},
  };
  for (const BlockGemm& gemm : BlockGemms()) {
    for (const Case& c : cases) CheckAgainstPlainLoops(gemm, c);
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
