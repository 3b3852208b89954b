#include "embedps/kernels/runtime/bf16.h"

#include <cmath>
#include <limits>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

TEST(RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FromBf16(ToBf16(1.0f)), 1.0f);
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f), 0x3F80);             // a tie, down to even
  EXPECT_EQ(ToBf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);  // above the tie
  EXPECT_EQ(ToBf16(1.0f + 0x1p-7f + 0x1p-8f), 0x3F82);   // a tie, up to even
  EXPECT_TRUE(std::isinf(FromBf16(ToBf16(3.4e38f))));    // the next value up is infinity
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(std::numeric_limits<float>::signaling_NaN()))));
}

TEST(ArraysAreConvertedAsSingleValues) {
  std::vector<float> values;
  for (int i = 0; i < 100; ++i) values.push_back(std::ldexp(1.0f + 0.37f * i, i - 50));
  std::vector<Bf16> rounded(values.size());
  RoundToBf16(values.data(), static_cast<int64_t>(values.size()), rounded.data());
  std::vector<float> widened(values.size());
  WidenBf16(rounded.data(), static_cast<int64_t>(values.size()), widened.data());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(rounded[i], ToBf16(values[i]));
    EXPECT_EQ(widened[i], FromBf16(rounded[i]));
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
