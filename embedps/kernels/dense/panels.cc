#include "embedps/kernels/dense/panels.h"

#include <algorithm>
#include <cstring>

#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

constexpr int kHalf = kStepValues / 2;

typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

// One round of a transpose: swaps the off-diagonal blocks of rows that are `distance` apart.
#define EMBEDPS_ROUND(distance)                                     \
  for (int i = 0; i < 16; ++i) {                                    \
    if (i & (distance)) continue;                                   \
    const Words a = rows[i], b = rows[i + (distance)];              \
    rows[i] = __builtin_shuffle(a, b, low##distance);               \
    rows[i + (distance)] = __builtin_shuffle(a, b, high##distance); \
  }

}  // namespace

EMBEDPS_SIMD void TransposeWords(const uint32_t* from, uint32_t* to) {
  const Words low1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
  const Words high1 = {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31};
  const Words low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  const Words high2 = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
  const Words low4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
  const Words high4 = {4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31};
  const Words low8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  const Words high8 = {8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31};
  Words rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = *reinterpret_cast<const Words*>(from + 16 * i);
  EMBEDPS_ROUND(1)
  EMBEDPS_ROUND(2)
  EMBEDPS_ROUND(4)
  EMBEDPS_ROUND(8)
#undef EMBEDPS_ROUND
  for (int i = 0; i < 16; ++i) *reinterpret_cast<Words*>(to + 16 * i) = rows[i];
}

EMBEDPS_SIMD void PackRight(const float* __restrict from, int64_t stride, int rows, int columns,
                            Bf16* __restrict to) {
  float padded[kStepValues];
  if (rows < kBlock || columns < kBlock) {
    std::memset(padded, 0, sizeof(padded));
    for (int k = 0; k < std::min(rows, kBlock); ++k) {
      std::memcpy(padded + k * kBlock, from + k * stride,
                  sizeof(float) * std::min(columns, kBlock));
    }
    from = padded;
    stride = kBlock;
  }
  for (int half = 0; half < 2; ++half) {
    for (int pair = 0; pair < 16; ++pair) {
      const float* __restrict even = from + (2 * pair) * stride + half * 16;
      const float* __restrict odd = even + stride;
      uint32_t words[16];
      for (int n = 0; n < 16; ++n) {
        words[n] = uint32_t{ToBf16(even[n])} | uint32_t{ToBf16(odd[n])} << 16;
      }
      std::memcpy(to + half * kHalf + pair * 32, words, sizeof(words));
    }
  }
}

EMBEDPS_SIMD void PackRightTransposed(const float* __restrict from, int64_t stride, int rows,
                                      int columns, Bf16* __restrict to) {
  for (int half = 0; half < 2; ++half) {
    Bf16 values[kHalf];
    for (int n = 0; n < 16; ++n) {
      Bf16* __restrict row = values + n * kBlock;
      if (half * 16 + n >= columns) {
        std::memset(row, 0, sizeof(Bf16) * kBlock);
        continue;
      }
      const float* __restrict source = from + (half * 16 + n) * stride;
      if (rows >= kBlock) {
        for (int k = 0; k < kBlock; ++k) row[k] = ToBf16(source[k]);
      } else {
        for (int k = 0; k < kBlock; ++k) row[k] = k < rows ? ToBf16(source[k]) : 0;
      }
    }
    TransposeWords(reinterpret_cast<const uint32_t*>(values),
                   reinterpret_cast<uint32_t*>(to + half * kHalf));
  }
}

EMBEDPS_SIMD void LeftToRight(const Bf16* __restrict left, Bf16* __restrict right,
                              float* __restrict sums) {
  float columns[kBlock] = {};
  for (int pair = 0; pair < 16; ++pair) {
    const Bf16* __restrict even = left + 2 * pair * kBlock;
    const Bf16* __restrict odd = even + kBlock;
    uint32_t words[kBlock];
    for (int n = 0; n < kBlock; ++n) {
      words[n] = uint32_t{even[n]} | uint32_t{odd[n]} << 16;
      columns[n] += FromBf16(even[n]);
      columns[n] += FromBf16(odd[n]);
    }
    std::memcpy(right + pair * 32, words, sizeof(words) / 2);
    std::memcpy(right + kHalf + pair * 32, words + 16, sizeof(words) / 2);
  }
  if (sums != nullptr) std::memcpy(sums, columns, sizeof(columns));
}

EMBEDPS_SIMD void TransposeLeft(const Bf16* __restrict from, Bf16* __restrict to) {
  for (int half = 0; half < 2; ++half) {
    uint32_t words[256];
    for (int pair = 0; pair < 16; ++pair) {
      const Bf16* __restrict even = from + 2 * pair * kBlock + half * 16;
      const Bf16* __restrict odd = even + kBlock;
      for (int n = 0; n < 16; ++n) {
        words[pair * 16 + n] = uint32_t{even[n]} | uint32_t{odd[n]} << 16;
      }
    }
    TransposeWords(words, reinterpret_cast<uint32_t*>(to + half * kHalf));
  }
}

}  // namespace embedps
