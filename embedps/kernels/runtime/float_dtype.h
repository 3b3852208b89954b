// The dtypes that floats are stored in. They are computed with as float32.
//
// Rounding never makes a finite value infinite: a value beyond the greatest finite one of its sign
// becomes that one. Infinity and NaN stay what they are. It uses integer arithmetic only, so its
// bits do not depend on the CPU's vectors, nor on whether denormal numbers are treated as zero.
#ifndef EMBEDPS_KERNELS_RUNTIME_FLOAT_DTYPE_H_
#define EMBEDPS_KERNELS_RUNTIME_FLOAT_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace embedps {

// kRowDtypes has their names. bfloat16 is the upper half of a float32; float16 is IEEE's binary16.
enum class FloatDtype { kFloat32, kBfloat16, kFloat16 };

inline size_t FloatBytes(FloatDtype dtype) { return dtype == FloatDtype::kFloat32 ? 4 : 2; }

void WidenHalves(FloatDtype dtype, const void* from, int64_t n, float* to);

// Converts `n` stored values to float32, which is exact.
inline void Widen(FloatDtype dtype, const void* from, int64_t n, float* to) {
  if (dtype == FloatDtype::kFloat32) {
    std::memcpy(to, from, sizeof(float) * n);
  } else {
    WidenHalves(dtype, from, n, to);
  }
}

// Rounds to the nearest value, ties to even.
void RoundToNearest(FloatDtype dtype, const float* from, int64_t n, void* to);

// Replaces values by the nearest that the dtype has.
void RoundInPlace(FloatDtype dtype, int n, float* values);

// Rounds up or down at random, so that the expected value is the given one. A value that the dtype
// has stays unchanged. Value i uses 16 random bits: the lower half of RandomBits(key, first + i /
// 2) for even i, or else the upper half.
void RoundAtRandom(FloatDtype dtype, const float* from, int64_t n, uint64_t key, uint32_t first,
                   void* to);

// Returns 32 random bits. It mixes key and counter as lowbias32 does (Wellons: Prospecting for Hash
// Functions, 2018), with the upper half of the key between the rounds.
inline uint32_t RandomBits(uint64_t key, uint32_t counter) {
  uint32_t x = static_cast<uint32_t>(key) + counter * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x ^= static_cast<uint32_t>(key >> 32);
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_FLOAT_DTYPE_H_
