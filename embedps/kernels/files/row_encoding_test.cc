#include "embedps/kernels/files/row_encoding.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

struct Coded {
  std::vector<float> values;
  float scale, offset;
};

Coded ThereAndBack(RowEncoding encoding, const std::vector<float>& row) {
  const int dim = static_cast<int>(row.size());
  std::vector<uint8_t> codes(CodeBytes(encoding, dim));
  Coded coded{std::vector<float>(dim), 0, 0};
  EncodeRow(encoding, row.data(), dim, codes.data(), &coded.scale, &coded.offset);
  DecodeRow(encoding, codes.data(), coded.scale, coded.offset, dim, coded.values.data());
  return coded;
}

TEST(NoValueIsFurtherThanHalfTheScale) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (const RowEncoding encoding : {RowEncoding::kInt8, RowEncoding::kInt4}) {
    for (int i = 0; i < 4000; ++i) {
      std::vector<float> row(1 + i % 19);
      const float center = i % 3 == 0 ? 0 : std::ldexp(normal(random), i % 40 - 20);
      const float width = std::ldexp(1.0f, i % 60 - 40);
      for (float& value : row) value = center + width * normal(random);
      const Coded coded = ThereAndBack(encoding, row);
      for (size_t d = 0; d < row.size(); ++d) {
        const double error = std::fabs(double{coded.values[d]} - double{row[d]});
        EXPECT_TRUE(error <= coded.scale / 2.0);
      }
    }
  }
}

TEST(EqualValuesAreExactAndInfiniteOnesAreNan) {
  for (const RowEncoding encoding : {RowEncoding::kInt8, RowEncoding::kInt4}) {
    const std::vector<float> same(7, 0.1f);
    EXPECT_EQ(ThereAndBack(encoding, same).values, same);
    EXPECT_EQ(ThereAndBack(encoding, same).scale, 0.0f);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -0x1p125f}) {
      const Coded coded = ThereAndBack(encoding, {1, bad, 2});
      EXPECT_TRUE(std::isnan(coded.scale) && std::isnan(coded.offset));
      for (const float value : coded.values) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(NibblesAreInOrderAndAnOddLastOneIsAlone) {
  // Of the values 0..15 the scale is 1 and the offset 0: each is its own code.
  std::vector<float> row;
  for (int d = 0; d < 15; ++d) row.push_back(static_cast<float>((d * 7) % 16));
  row[3] = 0, row[4] = 15;
  std::vector<uint8_t> codes(CodeBytes(RowEncoding::kInt4, 15), 0xFF);
  EXPECT_EQ(codes.size(), size_t{8});
  float scale, offset;
  EncodeRow(RowEncoding::kInt4, row.data(), 15, codes.data(), &scale, &offset);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(offset, 0.0f);
  for (int d = 0; d < 15; ++d)
    EXPECT_EQ(codes[d / 2] >> (d % 2 * 4) & 15, static_cast<int>(row[d]));
  EXPECT_EQ(codes[7] >> 4, 0);
}

TEST(Bfloat16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(FromBfloat16(ToBfloat16(1.0f)), 1.0f);
  EXPECT_EQ(ToBfloat16(1.0f + 0x1p-8f), 0x3F80);               // a tie, down to even
  EXPECT_EQ(ToBfloat16(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);    // above it
  EXPECT_EQ(ToBfloat16(1.0f + 0x1p-7f + 0x1p-8f), 0x3F82);     // a tie, up to even
  EXPECT_TRUE(std::isinf(FromBfloat16(ToBfloat16(3.4e38f))));  // the next one up is infinity
  EXPECT_TRUE(std::isnan(FromBfloat16(ToBfloat16(std::numeric_limits<float>::signaling_NaN()))));
}

TEST(NamesAreParsedBack) {
  for (const RowEncoding each : {RowEncoding::kFloat32, RowEncoding::kInt8, RowEncoding::kInt4}) {
    RowEncoding found;
    ASSERT_OK(Parse(Name(each), &found));
    EXPECT_TRUE(found == each);
  }
  SlotEncoding slots;
  ASSERT_OK(Parse("bfloat16", &slots));
  EXPECT_TRUE(slots == SlotEncoding::kBfloat16);
  EXPECT_STATUS(Parse("int8", &slots), StatusCode::kInvalidArgument, "'float32' or 'bfloat16'",
                "'int8'");
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
