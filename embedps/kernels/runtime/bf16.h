// bfloat16: the upper half of a float, as in TensorFlow and in the CPU's instructions.
#ifndef EMBEDPS_KERNELS_RUNTIME_BF16_H_
#define EMBEDPS_KERNELS_RUNTIME_BF16_H_

#include <cstdint>
#include <cstring>

namespace embedps {

using Bf16 = uint16_t;

inline float FromBf16(Bf16 value) {
  const uint32_t bits = uint32_t{value} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}

// Rounds to the nearest value, ties to even. A NaN stays a NaN. It has no branches, so the compiler
// vectorizes loops of it.
inline Bf16 ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<Bf16>((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded);
}

void RoundToBf16(const float* from, int64_t n, Bf16* to);
void WidenBf16(const Bf16* from, int64_t n, float* to);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_BF16_H_
