#include "embedps/kernels/runtime/bf16.h"

#include "embedps/kernels/runtime/simd.h"

namespace embedps {

EMBEDPS_SIMD void RoundToBf16(const float* __restrict from, int64_t n, Bf16* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(from[i]);
}

EMBEDPS_SIMD void WidenBf16(const Bf16* __restrict from, int64_t n, float* __restrict to) {
  for (int64_t i = 0; i < n; ++i) to[i] = FromBf16(from[i]);
}

}  // namespace embedps
