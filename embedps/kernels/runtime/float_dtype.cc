#include "embedps/kernels/runtime/float_dtype.h"

#include <algorithm>

#include "embedps/kernels/runtime/bf16.h"
#include "embedps/kernels/runtime/simd.h"

// Lets the compiler compute both sides of a choice, which it must to vectorize a loop.
#pragma GCC optimize("no-trapping-math")

namespace embedps {
namespace {

constexpr uint32_t kInfinity = 0x7F800000;  // float32's bits

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The formats below convert one value without branches, so the compiler vectorizes loops of them.
// `random` has 16 bits. It is not used to round to the nearest.

struct Bfloat16 {
  static float Widen(uint16_t half) { return FromBf16(half); }

  template <bool kNearest>
  static uint32_t Round(float value, uint32_t random) {
    const uint32_t bits = BitsOf(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t raise = kNearest ? 0x7FFF + (magnitude >> 16 & 1) : random;
    // Masks instead of choices: they take fewer instructions.
    const uint32_t special = magnitude < kInfinity ? 0 : 0xFFFFFFFF;
    const uint32_t quiet = magnitude > kInfinity ? 0x400000 : 0;
    const uint32_t rounded = std::min(magnitude + (raise & ~special), special | 0x7F7FFFFF);
    return ((bits & 0x80000000) | rounded | quiet) >> 16;
  }
};

struct Float16 {
  static constexpr uint32_t kLeastExponent = 113;  // of 2^-14, float16's least normal value

  static float Widen(uint16_t half) {
    const uint32_t magnitude = (half & 0x7FFFu) << 13;
    const uint32_t special = magnitude >= 31u << 23 ? 112u << 23 : 0;  // infinity or NaN
    const uint32_t normal = magnitude + (112u << 23) + special;
    // 2^-14 + value - 2^-14: no operand is a denormal float32, which TensorFlow's threads drop.
    const float least = FloatOf(kLeastExponent << 23);
    const uint32_t subnormal = BitsOf(FloatOf(magnitude + (kLeastExponent << 23)) - least);
    return FloatOf(uint32_t{half & 0x8000u} << 16 | (magnitude < 1u << 23 ? subnormal : normal));
  }

  template <bool kNearest>
  static uint32_t Round(float value, uint32_t random) {
    const uint32_t bits = BitsOf(value), magnitude = bits & 0x7FFFFFFF;
    const uint32_t exponent = std::max(magnitude >> 23, kLeastExponent);
    const uint32_t below = exponent - (magnitude >> 23);
    const uint32_t mantissa = (magnitude & 0x7FFFFF) | (magnitude >> 23 > 0 ? 0x800000 : 0);
    // Float16 lacks 13 bits, and those below 2^-24. Up to 31 bits take part in the rounding. More
    // bits than these are cut off; they are of values below 2^-31.
    const uint32_t shift = 13 + std::min(below, 18u);
    const uint32_t kept = mantissa >> std::min(below + 13 - shift, 31u);
    const uint32_t raise =
        kNearest ? (1u << (shift - 1)) - 1 + (kept >> shift & 1) : random << 15 >> (31 - shift);
    const uint32_t rounded = ((exponent - kLeastExponent) << 10) + ((kept + raise) >> shift);
    const uint32_t quiet = magnitude > kInfinity ? 0x200 | (mantissa >> 13 & 0x3FF) : 0;
    return (bits >> 16 & 0x8000) |
           (magnitude < kInfinity ? std::min(rounded, 0x7BFFu) : 0x7C00 | quiet);
  }
};

// Rounds n values in pairs, so that all arithmetic is of 32 bits: round(value, k, i) gives the bits
// of value i, which is 0 or 1, of pair k. Loops of vectors have a fixed length. What remains of the
// values is rounded one by one: optimizer slots may be a single float.
template <typename Round>
[[gnu::always_inline]] inline void InPairs(const float* from, int64_t n, uint16_t* to,
                                           const Round& round) {
  constexpr int kPairs = 8, kValues = 2 * kPairs;
  const auto block = [&round](const float* values, uint32_t pair,
                              uint16_t* halves) __attribute__((always_inline)) {
    uint32_t pairs[kPairs];  // little-endian: the lower half comes first
    for (int k = 0; k < kPairs; ++k) {
      pairs[k] = round(values[2 * k], pair + k, 0) | round(values[2 * k + 1], pair + k, 1) << 16;
    }
    std::memcpy(halves, pairs, sizeof(pairs));
  };
  int64_t at = 0;
  for (; n - at >= kValues; at += kValues) block(from + at, at / 2, to + at);
  for (; at < n; ++at) {
    asm volatile("");  // or the compiler would make vectors of this loop too
    to[at] = static_cast<uint16_t>(round(from[at], static_cast<uint32_t>(at / 2), at % 2));
  }
}

template <typename Format>
[[gnu::always_inline]] inline void Nearest(const float* from, int64_t n, uint16_t* to) {
  InPairs(from, n, to, [](float value, uint32_t, int) __attribute__((always_inline)) {
    return Format::template Round<true>(value, 0);
  });
}

template <typename Format>
[[gnu::always_inline]] inline void AtRandom(const float* from, int64_t n, uint64_t key,
                                            uint32_t first, uint16_t* to) {
  InPairs(from, n, to,
          [key, first](float value, uint32_t pair, int i) __attribute__((always_inline)) {
            const uint32_t random = RandomBits(key, first + pair);
            return Format::template Round<false>(value, i == 0 ? random & 0xFFFF : random >> 16);
          });
}

EMBEDPS_SIMD void WidenFp16(const uint16_t* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = Float16::Widen(from[i]);
}

EMBEDPS_SIMD void NearestBf16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  Nearest<Bfloat16>(from, n, to);
}

EMBEDPS_SIMD void NearestFp16(const float* __restrict from, int64_t n, uint16_t* __restrict to) {
  Nearest<Float16>(from, n, to);
}

EMBEDPS_SIMD void RandomBf16(const float* __restrict from, int64_t n, uint64_t key, uint32_t first,
                             uint16_t* __restrict to) {
  AtRandom<Bfloat16>(from, n, key, first, to);
}

EMBEDPS_SIMD void RandomFp16(const float* __restrict from, int64_t n, uint64_t key, uint32_t first,
                             uint16_t* __restrict to) {
  AtRandom<Float16>(from, n, key, first, to);
}

}  // namespace

void WidenHalves(FloatDtype dtype, const void* from, int64_t n, float* to) {
  const auto* halves = static_cast<const uint16_t*>(from);
  if (dtype == FloatDtype::kBfloat16) return WidenBf16(halves, n, to);
  WidenFp16(halves, n, to);
}

void RoundToNearest(FloatDtype dtype, const float* from, int64_t n, void* to) {
  if (n == 0) return;  // memcpy takes no null pointers
  switch (dtype) {
    case FloatDtype::kFloat32:
      std::memcpy(to, from, sizeof(float) * n);
      return;
    case FloatDtype::kBfloat16:
      return NearestBf16(from, n, static_cast<uint16_t*>(to));
    case FloatDtype::kFloat16:
      return NearestFp16(from, n, static_cast<uint16_t*>(to));
  }
}

void RoundInPlace(FloatDtype dtype, int n, float* values) {
  if (dtype == FloatDtype::kFloat32) return;
  constexpr int kAtOnce = 64;
  uint16_t halves[kAtOnce];
  for (int first = 0; first < n; first += kAtOnce) {
    const int count = std::min(kAtOnce, n - first);
    RoundToNearest(dtype, values + first, count, halves);
    Widen(dtype, halves, count, values + first);
  }
}

void RoundAtRandom(FloatDtype dtype, const float* from, int64_t n, uint64_t key, uint32_t first,
                   void* to) {
  switch (dtype) {
    case FloatDtype::kFloat32:
      std::memcpy(to, from, sizeof(float) * n);
      return;
    case FloatDtype::kBfloat16:
      return RandomBf16(from, n, key, first, static_cast<uint16_t*>(to));
    case FloatDtype::kFloat16:
      return RandomFp16(from, n, key, first, static_cast<uint16_t*>(to));
  }
}

}  // namespace embedps
