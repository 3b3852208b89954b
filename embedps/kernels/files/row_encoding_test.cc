#include "embedps/kernels/files/row_encoding.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

struct DecodedRow {
  std::vector<float> values;
  float scale, offset;
};

DecodedRow EncodeAndDecode(EmbeddingEncoding encoding, const std::vector<float>& row) {
  const int dim = static_cast<int>(row.size());
  std::vector<uint8_t> codes(CodeBytes(encoding, dim));
  DecodedRow decoded{std::vector<float>(dim), 0, 0};
  EncodeRow(encoding, row.data(), dim, codes.data(), &decoded.scale, &decoded.offset);
  DecodeRow(encoding, codes.data(), decoded.scale, decoded.offset, dim, decoded.values.data());
  return decoded;
}

TEST(NoValueIsFurtherThanHalfTheScale) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (const EmbeddingEncoding encoding : {EmbeddingEncoding::kInt8, EmbeddingEncoding::kInt4}) {
    for (int i = 0; i < 4000; ++i) {
      std::vector<float> row(1 + i % 19);
      const float center = i % 3 == 0 ? 0 : std::ldexp(normal(random), i % 40 - 20);
      const float width = std::ldexp(1.0f, i % 60 - 40);
      for (float& value : row) value = center + width * normal(random);
      const DecodedRow decoded = EncodeAndDecode(encoding, row);
      for (size_t d = 0; d < row.size(); ++d) {
        const double error = std::fabs(double{decoded.values[d]} - double{row[d]});
        EXPECT_TRUE(error <= decoded.scale / 2.0);
      }
    }
  }
}

TEST(EqualValuesAreExactAndInfiniteOnesAreNan) {
  for (const EmbeddingEncoding encoding : {EmbeddingEncoding::kInt8, EmbeddingEncoding::kInt4}) {
    const std::vector<float> same(7, 0.1f);
    EXPECT_EQ(EncodeAndDecode(encoding, same).values, same);
    EXPECT_EQ(EncodeAndDecode(encoding, same).scale, 0.0f);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -0x1p125f}) {
      const DecodedRow decoded = EncodeAndDecode(encoding, {1, bad, 2});
      EXPECT_TRUE(std::isnan(decoded.scale) && std::isnan(decoded.offset));
      for (const float value : decoded.values) EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST(NibblesAreInOrderAndAnOddLastOneIsAlone) {
  // The values 0..15 have scale 1 and offset 0, so each value is its own code.
  std::vector<float> row;
  for (int d = 0; d < 15; ++d) row.push_back(static_cast<float>((d * 7) % 16));
  row[3] = 0, row[4] = 15;
  std::vector<uint8_t> codes(CodeBytes(EmbeddingEncoding::kInt4, 15), 0xFF);
  EXPECT_EQ(codes.size(), size_t{8});
  float scale, offset;
  EncodeRow(EmbeddingEncoding::kInt4, row.data(), 15, codes.data(), &scale, &offset);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(offset, 0.0f);
  for (int d = 0; d < 15; ++d)
    EXPECT_EQ(codes[d / 2] >> (d % 2 * 4) & 15, static_cast<int>(row[d]));
  EXPECT_EQ(codes[7] >> 4, 0);
}

TEST(NamesAreParsedBack) {
  for (const EmbeddingEncoding each :
       {EmbeddingEncoding::kFloat32, EmbeddingEncoding::kInt8, EmbeddingEncoding::kInt4}) {
    EmbeddingEncoding found;
    ASSERT_OK(Parse(Name(each), &found));
    EXPECT_TRUE(found == each);
  }
  OptimizerSlotEncoding found;
  ASSERT_OK(Parse("bfloat16", &found));
  EXPECT_TRUE(found == OptimizerSlotEncoding::kBfloat16);
  EXPECT_STATUS(Parse("int8", &found), StatusCode::kInvalidArgument,
                "optimizer slot encoding must be float32 or bfloat16 but got 'int8'");
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
