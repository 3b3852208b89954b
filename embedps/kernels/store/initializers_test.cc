#include "embedps/kernels/store/initializers.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(InitialValuesDependOnSeedTableAndIdAlone) {
  const InitializerConfig uniform{InitializerConfig::Kind::kUniform, -0.5f, 0.25f};
  const auto values = [&](int64_t seed, const char* table, int64_t id) {
    std::vector<float> v(9);
    InitializeEmbedding(uniform, seed, TableSalt(table), id, 9, v.data());
    return v;
  };
  std::set<std::vector<float>> distinct;
  for (const int64_t id : {kMin, int64_t{-1}, int64_t{0}, int64_t{1}, kMax}) {
    const std::vector<float> v = values(0, "C1", id);
    EXPECT_EQ(v, values(0, "C1", id));
    for (const float x : v) EXPECT_TRUE(x >= -0.5f && x < 0.25f);
    distinct.insert(v);
    distinct.insert(values(1, "C1", id));
    distinct.insert(values(0, "C2", id));
  }
  EXPECT_EQ(distinct.size(), size_t{15});
}

TEST(NormalInitialValuesHaveTheirMoments) {
  const InitializerConfig normal{InitializerConfig::Kind::kNormal, 0.5f, 2.0f};
  double sum = 0, squares = 0;
  constexpr int kIds = 20000, kDim = 5;
  for (int64_t id = 0; id < kIds; ++id) {
    float v[kDim];
    InitializeEmbedding(normal, 0, TableSalt("C1"), id, kDim, v);
    for (const float x : v) {
      sum += x;
      squares += double{x} * x;
    }
  }
  const double n = kIds * kDim, mean = sum / n;
  // The bounds are five standard errors.
  EXPECT_NEAR(mean, 0.5, 5 * 2.0 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), 2.0, 5 * 2.0 / std::sqrt(2 * n));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
