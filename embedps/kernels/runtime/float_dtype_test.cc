#include "embedps/kernels/runtime/float_dtype.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr FloatDtype kHalves[] = {FloatDtype::kBfloat16, FloatDtype::kFloat16};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What IEEE 754 says of a format: significand bits after the point, and the exponent of its least
// normal value and of its greatest.
struct Format {
  int fraction_bits, least, greatest;
};

Format FormatOf(FloatDtype dtype) {
  return dtype == FloatDtype::kBfloat16 ? Format{7, -126, 127} : Format{10, -14, 15};
}

double Greatest(FloatDtype dtype) {
  const Format f = FormatOf(dtype);
  return std::ldexp(2 - std::ldexp(1.0, -f.fraction_bits), f.greatest);
}

// The distance between neighbors at a value.
double Quantum(FloatDtype dtype, double magnitude) {
  const Format f = FormatOf(dtype);
  const int exponent = magnitude == 0 ? f.least : std::max(std::ilogb(magnitude), f.least);
  return std::ldexp(1.0, exponent - f.fraction_bits);
}

double Signed(double magnitude, float like) {
  return std::copysign(magnitude, static_cast<double>(like));
}

double NearestByFormula(FloatDtype dtype, float value) {
  const double magnitude = std::fabs(double{value}), quantum = Quantum(dtype, magnitude);
  return Signed(std::fmin(std::nearbyint(magnitude / quantum) * quantum, Greatest(dtype)), value);
}

double RandomByFormula(FloatDtype dtype, float value, uint32_t random) {
  const double magnitude = std::fabs(double{value}), quantum = Quantum(dtype, magnitude);
  const double quanta = std::floor(magnitude / quantum + random * 0x1p-16);
  return Signed(std::fmin(quanta * quantum, Greatest(dtype)), value);
}

// The random bits of value i.
uint32_t RandomOf(uint64_t key, uint32_t first, int i) {
  const uint32_t word = RandomBits(key, first + i / 2);
  return i % 2 == 0 ? word & 0xFFFF : word >> 16;
}

std::vector<float> Rounded(FloatDtype dtype, const std::vector<float>& values) {
  std::vector<uint16_t> halves(values.size());
  RoundToNearest(dtype, values.data(), static_cast<int64_t>(values.size()), halves.data());
  std::vector<float> found(values.size());
  Widen(dtype, halves.data(), static_cast<int64_t>(values.size()), found.data());
  return found;
}

std::vector<float> RoundedAtRandom(FloatDtype dtype, const std::vector<float>& values, uint64_t key,
                                   uint32_t first = 0) {
  std::vector<uint16_t> halves(values.size());
  RoundAtRandom(dtype, values.data(), static_cast<int64_t>(values.size()), key, first,
                halves.data());
  std::vector<float> found(values.size());
  Widen(dtype, halves.data(), static_cast<int64_t>(values.size()), found.data());
  return found;
}

// Values of every magnitude, the edges of the formats, and ties.
std::vector<float> ManyValues(FloatDtype dtype) {
  std::mt19937_64 random(3);
  std::vector<float> values = {0.0f, -0.0f, 1.0f, 65504.0f, 65519.0f, 65520.0f, 3.39e38f};
  for (int exponent = -160; exponent < 128; ++exponent) {
    for (int i = 0; i < 50; ++i) {
      const float value = std::ldexp(1 + static_cast<float>(random() >> 40) * 0x1p-24f, exponent);
      const double quantum = Quantum(dtype, value);
      const float tie = static_cast<float>((std::floor(value / quantum) + 0.5) * quantum);
      for (const float each : {value, tie}) values.push_back(i % 2 == 0 ? each : -each);
    }
  }
  return values;
}

TEST(EveryHalfIsWidenedByTheFormula) {
  for (const FloatDtype dtype : kHalves) {
    const Format format = FormatOf(dtype);
    std::vector<uint16_t> halves(65536);
    for (int i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
    std::vector<float> found(halves.size());
    Widen(dtype, halves.data(), 65536, found.data());
    for (int i = 0; i < 65536; ++i) {
      const int exponent = (i & 0x7FFF) >> format.fraction_bits;
      const int fraction = i & ((1 << format.fraction_bits) - 1);
      if (exponent == format.greatest - format.least + 2) {
        EXPECT_TRUE(fraction == 0 ? std::isinf(found[i]) : std::isnan(found[i]));
      } else {
        const double unit = std::ldexp(1.0, std::max(exponent, 1) - 1 + format.least);
        const double scaled = (exponent > 0) + std::ldexp(fraction, -format.fraction_bits);
        EXPECT_EQ(std::fabs(double{found[i]}), scaled * unit);
      }
      EXPECT_EQ(std::signbit(found[i]), i >= 32768);
    }
  }
}

TEST(EveryHalfIsItsOwnRounding) {
  for (const FloatDtype dtype : kHalves) {
    std::vector<uint16_t> halves(65536), nearest(65536), random(65536);
    for (int i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
    std::vector<float> values(halves.size());
    Widen(dtype, halves.data(), 65536, values.data());
    RoundToNearest(dtype, values.data(), 65536, nearest.data());
    RoundAtRandom(dtype, values.data(), 65536, 17, 5, random.data());
    for (int i = 0; i < 65536; ++i) {
      const uint16_t quiet = dtype == FloatDtype::kBfloat16 ? 0x40 : 0x200;
      const auto expected = static_cast<uint16_t>(std::isnan(values[i]) ? i | quiet : i);
      EXPECT_EQ(nearest[i], expected);
      EXPECT_EQ(random[i], expected);
    }
  }
}

TEST(RoundsToTheNearestByTheFormula) {
  for (const FloatDtype dtype : kHalves) {
    const std::vector<float> values = ManyValues(dtype);
    const std::vector<float> found = Rounded(dtype, values);
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(double{found[i]}, NearestByFormula(dtype, values[i]));
      EXPECT_EQ(std::signbit(found[i]), std::signbit(values[i]));
    }
    std::vector<float> in_place = values;
    RoundInPlace(dtype, static_cast<int>(values.size()), in_place.data());
    EXPECT_TRUE(in_place == found);
  }
}

TEST(RoundsAtRandomByTheFormula) {
  for (const FloatDtype dtype : kHalves) {
    const std::vector<float> values = ManyValues(dtype);
    for (const uint32_t first : {0u, 8u, 0xFFFFFF00u}) {
      const uint64_t key = 0x123456789ABCDEFu * (first + 1);
      const std::vector<float> found = RoundedAtRandom(dtype, values, key, first);
      for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t random = RandomOf(key, first, static_cast<int>(i));
        EXPECT_EQ(double{found[i]}, RandomByFormula(dtype, values[i], random));
      }
    }
  }
}

TEST(AnyLengthRoundsAsTheBeginningOfALongOne) {
  for (const FloatDtype dtype : kHalves) {
    std::vector<float> values;
    for (int i = 0; i < 100; ++i) values.push_back(0.01f * i - 0.3f);
    const std::vector<float> nearest = Rounded(dtype, values);
    const std::vector<float> random = RoundedAtRandom(dtype, values, 99);
    for (int n = 0; n < 100; ++n) {
      const std::vector<float> some(values.begin(), values.begin() + n);
      EXPECT_TRUE(Rounded(dtype, some) == std::vector<float>(nearest.begin(), nearest.begin() + n));
      EXPECT_TRUE(RoundedAtRandom(dtype, some, 99) ==
                  std::vector<float>(random.begin(), random.begin() + n));
    }
  }
}

TEST(FiniteValuesStayFiniteAndOthersStayWhatTheyAre) {
  for (const FloatDtype dtype : kHalves) {
    const auto greatest = static_cast<float>(Greatest(dtype));
    const float max = std::numeric_limits<float>::max();
    const std::vector<float> values = {max,  -max,  std::nextafter(greatest, kInf),
                                       kInf, -kInf, kNan};
    for (uint64_t key = 0; key < 100; ++key) {
      for (const auto& found : {Rounded(dtype, values), RoundedAtRandom(dtype, values, key)}) {
        EXPECT_EQ(found[0], greatest);
        EXPECT_EQ(found[1], -greatest);
        EXPECT_EQ(found[2], greatest);
        EXPECT_EQ(found[3], kInf);
        EXPECT_EQ(found[4], -kInf);
        EXPECT_TRUE(std::isnan(found[5]));
      }
    }
  }
}

TEST(TheMeanOverManyKeysIsTheValue) {
  for (const FloatDtype dtype : kHalves) {
    const std::vector<float> values = {0.1f, -1.00317f, 2.7e-5f, 3e-8f, -1e-9f, 777.77f};
    std::vector<double> sums(values.size()), squares(values.size());
    constexpr int kKeys = 40000;
    for (int key = 0; key < kKeys; ++key) {
      const auto found = RoundedAtRandom(dtype, values, key * 0x9E3779B97F4A7C15);
      for (size_t i = 0; i < values.size(); ++i) sums[i] += found[i];
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double quantum = Quantum(dtype, std::fabs(values[i]));
      // Five standard deviations of a mean of values that are at most half a quantum from theirs.
      EXPECT_NEAR(sums[i] / kKeys, double{values[i]}, 5 * 0.5 * quantum / std::sqrt(kKeys));
    }
  }
}

TEST(RandomBitsAreEvenlySpread) {
  // By bit, for keys and counters that follow each other; and no two of these words are equal more
  // often than by chance.
  std::vector<int> ones(32);
  std::set<uint32_t> words;
  constexpr int kKeys = 400, kCounters = 250;
  for (uint64_t key = 0; key < kKeys; ++key) {
    for (uint32_t counter = 0; counter < kCounters; ++counter) {
      const uint32_t word = RandomBits(key << 32 | key, counter);
      words.insert(word);
      for (int bit = 0; bit < 32; ++bit) ones[bit] += word >> bit & 1;
    }
  }
  constexpr double kWords = kKeys * kCounters;
  for (const int count : ones) EXPECT_NEAR(count, kWords / 2, 5 * std::sqrt(kWords) / 2);
  EXPECT_NEAR(static_cast<double>(words.size()), kWords, 20);  // 1.2 equal pairs are expected
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
