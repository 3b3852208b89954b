#include "embedps/kernels/retrieval/item_codes.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

// A block whose codes the test may change.
struct Block {
  explicit Block(int dim) : numbers(dim * kLanes + 64), floats(2 * kLanes + 16) {
    codes.numbers = Aligned(numbers.data());
    codes.scales = Aligned(floats.data());
    codes.errors = codes.scales + kLanes;
  }

  template <typename T>
  static T* Aligned(T* memory) {
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory) + 63) & ~uintptr_t{63});
  }

  std::vector<int8_t> numbers;
  std::vector<float> floats;
  BlockCodes codes;
};

TEST(NoScoreExceedsItsBound) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  double looseness = 0;
  int count = 0;
  for (const int dim : {1, 2, 7, 64, 300}) {
    for (const float size : {1.0f, 1e-20f, 1e15f}) {
      Block block(dim);
      std::vector<std::vector<float>> vectors(kLanes, std::vector<float>(dim));
      for (int lane = 0; lane < kLanes; ++lane) {
        for (float& value : vectors[lane]) value = size * normal(random);
        if (lane % 5 == 0) vectors[lane][0] *= 1000;  // few codes are left for the others
        if (lane % 9 == 0) vectors[lane].assign(dim, 0.0f);
        EncodeVector(vectors[lane].data(), dim, lane, block.codes);
      }
      for (int turn = 0; turn < 30; ++turn) {
        std::vector<float> values(dim);
        for (float& value : values) value = normal(random);
        const CodedQuery query(values.data(), dim);
        alignas(64) float most[kLanes];
        BoundScores(block.codes, query, block.codes, most);
        for (int lane = 0; lane < kLanes; ++lane) {
          float sum = 0, fused = 0, backwards = 0;
          for (int i = 0; i < dim; ++i) {
            sum += values[i] * vectors[lane][i];
            fused = std::fma(values[i], vectors[lane][i], fused);
            backwards += values[dim - 1 - i] * vectors[lane][dim - 1 - i];
          }
          EXPECT_TRUE(sum <= most[lane]);
          EXPECT_TRUE(fused <= most[lane]);
          EXPECT_TRUE(backwards <= most[lane]);
          if (size == 1.0f && dim == 64 && lane % 45 % 5 != 0) {
            looseness += most[lane] - sum;
            ++count;
          }
        }
      }
    }
  }
  EXPECT_TRUE(looseness / count < 1.0);  // scores are about 8 in size
}

TEST(WhatIsNoNumberIsNeverBelow) {
  const float infinity = std::numeric_limits<float>::infinity();
  Block block(2);
  const std::vector<std::vector<float>> vectors = {
      {infinity, 1}, {-infinity, 1}, {std::nanf(""), 1}, {1e-42f, 1e-42f}, {3e38f, 3e38f}};
  for (size_t lane = 0; lane < vectors.size(); ++lane) {
    EncodeVector(vectors[lane].data(), 2, lane, block.codes);
  }
  for (const std::vector<float>& values :
       {std::vector<float>{1, 1}, {0, 0}, {1e38f, 1e38f}, {infinity, 0}, {std::nanf(""), 1}}) {
    const CodedQuery query(values.data(), 2);
    alignas(64) float most[kLanes];
    BoundScores(block.codes, query, block.codes, most);
    for (size_t lane = 0; lane < vectors.size(); ++lane) {
      const float score = values[0] * vectors[lane][0] + values[1] * vectors[lane][1];
      EXPECT_TRUE(!(most[lane] < score));
    }
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
