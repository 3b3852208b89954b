#include "embedps/kernels/dense/product.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns a repeatable number in [-1, 1).
float Noise(uint64_t seed, int64_t i) {
  uint64_t x = (seed << 32) + static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ull;
  return static_cast<float>(x >> 40) * 0x1p-23f - 1;
}

std::vector<float> NoiseVector(uint64_t seed, int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = Noise(seed, i);
  return values;
}

struct Shape {
  int64_t rows, inner, columns;
};

// Multiplies by panels and tasks, in `parts` ranges of them as threads would, the last one first.
std::vector<float> Multiply(const ProductTile& tile, const float* left, const float* right,
                            const Shape& shape, bool transposed = false, int64_t parts = 1) {
  const int64_t panels = NumPanels(shape.columns), tasks = NumChunks(shape.rows) * panels;
  std::vector<float> packed(panels * shape.inner * kPanelColumns, NAN);
  std::vector<float> product(shape.rows * shape.columns, NAN);
  for (int64_t part = parts - 1; part >= 0; --part) {
    PackPanels(right, shape.inner, shape.columns, transposed, part * panels / parts,
               (part + 1) * panels / parts, packed.data());
  }
  for (int64_t part = parts - 1; part >= 0; --part) {
    MultiplyTasks(tile, left, packed.data(), shape.rows, shape.inner, shape.columns,
                  part * tasks / parts, (part + 1) * tasks / parts, product.data());
  }
  return product;
}

// The definition: sums in order of the inner dimension, in plain loops.
std::vector<float> PlainProduct(bool is_fused, const float* left, const float* right,
                                const Shape& shape) {
  std::vector<float> product(shape.rows * shape.columns);
  for (int64_t m = 0; m < shape.rows; ++m) {
    for (int64_t n = 0; n < shape.columns; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < shape.inner; ++k) {
        const float x = left[m * shape.inner + k], y = right[k * shape.columns + n];
        const volatile float rounded = x * y;  // no compiler fuses it
        sum = is_fused ? std::fma(x, y, sum) : sum + rounded;
      }
      product[m * shape.columns + n] = sum;
    }
  }
  return product;
}

std::vector<float> TransposedOf(const std::vector<float>& from, int64_t rows, int64_t columns) {
  std::vector<float> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
  return to;
}

bool SameBits(const float* a, const float* b, int64_t size) {
  return std::memcmp(a, b, sizeof(float) * size) == 0;
}
bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || SameBits(a.data(), b.data(), a.size()));
}

// Expects a product's bits to be the plain twin's, and its values to be a sum of doubles'.
void CheckProduct(const ProductTile& tile, const Shape& shape) {
  const std::vector<float> left = NoiseVector(1, shape.rows * shape.inner);
  const std::vector<float> right = NoiseVector(2, shape.inner * shape.columns);
  const std::vector<float> turned = TransposedOf(right, shape.inner, shape.columns);
  const std::vector<float> found = Multiply(tile, left.data(), right.data(), shape);
  EXPECT_TRUE(SameBits(found, PlainProduct(tile.is_fused, left.data(), right.data(), shape)));
  EXPECT_TRUE(SameBits(found, Multiply(tile, left.data(), turned.data(), shape, true)));
  EXPECT_TRUE(SameBits(found, Multiply(tile, left.data(), right.data(), shape, false, 3)));
  EXPECT_TRUE(SameBits(found, Multiply(tile, left.data(), turned.data(), shape, true, 7)));
  for (int64_t m = 0; m < shape.rows; ++m) {
    for (int64_t n = 0; n < shape.columns; ++n) {
      double sum = 0, sizes = 0;
      for (int64_t k = 0; k < shape.inner; ++k) {
        const double each = double{left[m * shape.inner + k]} * right[k * shape.columns + n];
        sum += each;
        sizes += std::fabs(each);
      }
      // Each of `inner` sums and products is rounded by 2^-24 of a partial sum at most.
      const double bound = 0x1p-23 * static_cast<double>(shape.inner + 1) * sizes;
      EXPECT_NEAR(found[m * shape.columns + n], sum, bound);
    }
  }
}

TEST(TheFirstTileIsPlainAndTheLastFusedWhereTheProcessorCan) {
  EXPECT_FALSE(ProductTiles().front().is_fused);
#if defined(__x86_64__) && defined(__GNUC__)
  const bool fuses = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  EXPECT_EQ(ProductTiles().back().is_fused, fuses);
#endif
}

TEST(EveryShapeHasTheBitsOfPlainLoops) {
  for (const ProductTile& tile : ProductTiles()) {
    for (const int64_t rows : {0, 1, 2, 5, 6, 7, 12, 47, 48, 49, 97}) {
      for (const int64_t inner : {0, 1, 2, 3, 37}) {
        for (const int64_t columns : {0, 1, 7, 8, 9, 15, 16, 17, 24, 25, 33}) {
          CheckProduct(tile, {rows, inner, columns});
        }
      }
    }
    CheckProduct(tile, {7, 1000, 9});
  }
}

TEST(ARowHasTheSameBitsInAnyBatchAndPlace) {
  const Shape all = {101, 130, 27};
  const std::vector<float> left = NoiseVector(3, all.rows * all.inner);
  const std::vector<float> right = NoiseVector(4, all.inner * all.columns);
  for (const ProductTile& tile : ProductTiles()) {
    const std::vector<float> whole = Multiply(tile, left.data(), right.data(), all);
    for (int64_t rows = 1; rows <= all.rows; ++rows) {
      for (const int64_t first : {int64_t{0}, (all.rows - rows) / 2, all.rows - rows}) {
        const std::vector<float> part = Multiply(tile, left.data() + first * all.inner,
                                                 right.data(), {rows, all.inner, all.columns});
        EXPECT_TRUE(SameBits(part.data(), &whole[first * all.columns], rows * all.columns));
      }
    }
  }
}

TEST(WhatIsNoNumberStaysInItsRowOrColumn) {
  const Shape shape = {8, 5, 18};
  std::vector<float> left(shape.rows * shape.inner, 1), right(shape.inner * shape.columns, 1);
  left[1 * shape.inner + 2] = NAN;
  left[2 * shape.inner + 4] = kInfinity;
  left[7 * shape.inner] = -kInfinity;  // the last row, which fills the rest of its tile
  right[3 * shape.columns + 17] = 0;   // the last column, beside the panel's padding
  right[4 * shape.columns + 17] = 0;
  for (const ProductTile& tile : ProductTiles()) {
    const std::vector<float> found = Multiply(tile, left.data(), right.data(), shape);
    for (int64_t m = 0; m < shape.rows; ++m) {
      for (int64_t n = 0; n < shape.columns; ++n) {
        const float value = found[m * shape.columns + n];
        if (m == 1 || (m == 2 && n == 17)) {  // infinity times zero is no number
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(value, m == 2 ? kInfinity : m == 7 ? -kInfinity : n == 17 ? 3.0f : 5.0f);
        }
      }
    }
  }
}

TEST(ThreadsThatPackAndMultiplyTogetherGiveTheSameBits) {
  const Shape shape = {150, 40, 70};
  const std::vector<float> left = NoiseVector(5, shape.rows * shape.inner);
  const std::vector<float> right = NoiseVector(6, shape.inner * shape.columns);
  const int64_t panels = NumPanels(shape.columns), tasks = NumChunks(shape.rows) * panels;
  constexpr int64_t kThreads = 4;
  const auto on_threads = [](const auto& work) {
    std::vector<std::thread> threads;
    for (int64_t t = 0; t < kThreads; ++t) threads.emplace_back([&work, t] { work(t); });
    for (std::thread& thread : threads) thread.join();
  };
  for (const ProductTile& tile : ProductTiles()) {
    std::vector<float> packed(panels * shape.inner * kPanelColumns);
    std::vector<float> product(shape.rows * shape.columns);
    on_threads([&](int64_t t) {
      PackPanels(right.data(), shape.inner, shape.columns, false, t * panels / kThreads,
                 (t + 1) * panels / kThreads, packed.data());
    });
    on_threads([&](int64_t t) {
      MultiplyTasks(tile, left.data(), packed.data(), shape.rows, shape.inner, shape.columns,
                    t * tasks / kThreads, (t + 1) * tasks / kThreads, product.data());
    });
    EXPECT_TRUE(SameBits(product, Multiply(tile, left.data(), right.data(), shape)));
    on_threads([&](int64_t) {  // calls that share nothing but their inputs
      EXPECT_TRUE(SameBits(product, Multiply(tile, left.data(), right.data(), shape)));
    });
  }
}

TEST(SoftmaxIsThatOfDoublesAndDoesNotDependOnOtherRows) {
  for (const int64_t columns : {1, 2, 7, 8, 9, 100}) {
    constexpr int64_t kRows = 5;
    std::vector<float> logits = NoiseVector(7, kRows * columns);
    for (float& value : logits) value *= 30;
    for (const bool log : {false, true}) {
      std::vector<float> found(logits.size(), NAN), alone(columns, NAN);
      SoftmaxRows(logits.data(), kRows, columns, log, found.data());
      SoftmaxRows(logits.data(), 0, columns, log, nullptr);
      for (int64_t row = 0; row < kRows; ++row) {
        const float* from = &logits[row * columns];
        SoftmaxRows(from, 1, columns, log, alone.data());
        EXPECT_TRUE(SameBits(alone.data(), &found[row * columns], columns));
        double sum = 0;
        for (int64_t n = 0; n < columns; ++n) sum += std::exp(double{from[n]});
        for (int64_t n = 0; n < columns; ++n) {
          const double want = log ? from[n] - std::log(sum) : std::exp(double{from[n]}) / sum;
          EXPECT_NEAR(alone[n], want, log ? 1e-5 : 1e-5 * want);
        }
      }
    }
  }
}

TEST(SoftmaxOfExtremesIsExact) {
  const float least = -std::numeric_limits<float>::max();
  const std::vector<float> logits = {1e38f, -kInfinity, 1e38f, least};
  std::vector<float> found(4, NAN);
  SoftmaxRows(logits.data(), 1, 4, false, found.data());
  EXPECT_EQ(found, (std::vector<float>{0.5f, 0, 0.5f, 0}));
}

TEST(SoftmaxOfWhatIsNoNumberIsNoneInThatRowOnly) {
  std::vector<float> logits(8 * 3, 0.0f);
  logits[0 * 3 + 2] = logits[3 * 3] = NAN;
  logits[5 * 3] = kInfinity;
  logits[6 * 3] = -kInfinity;
  for (const bool log : {false, true}) {
    std::vector<float> found(logits.size());
    SoftmaxRows(logits.data(), 8, 3, log, found.data());
    for (int64_t row = 0; row < 8; ++row) {
      const bool none = row == 0 || row == 3 || row == 5;
      for (int64_t n = 0; n < 3; ++n) EXPECT_EQ(std::isnan(found[row * 3 + n]), none);
    }
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
