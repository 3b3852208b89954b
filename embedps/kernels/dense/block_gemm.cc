#include "embedps/kernels/dense/block_gemm.h"

#include <algorithm>
#include <cstring>

#include "embedps/kernels/dense/panels.h"
#include "embedps/kernels/runtime/simd.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define EMBEDPS_X86 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace embedps {
namespace {

void DoNothing() {}

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

EMBEDPS_SIMD void PlainRound(const float* __restrict sums, Bf16* __restrict to) {
  for (int i = 0; i < kStepValues; ++i) to[i] = ToBf16(sums[i]);
}

// Returns the number of pairs of contraction values in a step.
int64_t PairsOf(const Extent& extent, int64_t step) {
  return std::min<int64_t>(16, (extent.inner - step * kBlock + 1) / 2);
}

EMBEDPS_SIMD void PlainMultiply(const Bf16* left, const Bf16* right, const Extent& extent,
                                float* sums) {
  std::memset(sums, 0, sizeof(float) * kStepValues);
  const int64_t steps = NumBlocks(extent.inner);
  const int halves = extent.columns > 16 ? 2 : 1;
  for (int64_t s = 0; s < steps; ++s, left += kStepValues, right += kStepValues) {
    const int64_t pairs = PairsOf(extent, s);
    for (int row = 0; row < extent.rows; ++row) {
      const Bf16* __restrict a = left + row * kBlock;
      for (int half = 0; half < halves; ++half) {
        Floats& to = *reinterpret_cast<Floats*>(sums + row * kBlock + half * 16);
        Floats sum = to;
        const Bf16* b = right + half * (kStepValues / 2);
        for (int64_t pair = 0; pair < pairs; ++pair) {
          const Words words = *reinterpret_cast<const Words*>(b + pair * 32);
          const Words even = words << 16, odd = words & 0xFFFF0000u;
          sum += FromBf16(a[2 * pair]) * reinterpret_cast<const Floats&>(even);
          sum += FromBf16(a[2 * pair + 1]) * reinterpret_cast<const Floats&>(odd);
        }
        to = sum;
      }
    }
  }
}

#ifdef EMBEDPS_X86

#define EMBEDPS_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

constexpr int kRows = 8;  // multiplied at once: 8 or 16 registers of sums

// Computes kRows rows of a product. `row_stride` values lie between the pairs of adjacent rows, and
// `pair_stride` values between adjacent pairs of a row.
template <int kHalves, int row_stride, int pair_stride>
EMBEDPS_AVX512_BF16 inline void Avx512Rows(const Bf16* left, const Bf16* right,
                                           const Extent& extent, float* sums) {
  __m512 sum[kRows][kHalves];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) sum[r][half] = _mm512_setzero_ps();
  }
  const int64_t steps = NumBlocks(extent.inner);
  for (int64_t s = 0; s < steps; ++s, left += kStepValues, right += kStepValues) {
    const int64_t pairs = PairsOf(extent, s);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      __m512bh b[kHalves];
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
        b[half] = (__m512bh)_mm512_loadu_si512(right + half * (kStepValues / 2) + pair * 32);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int word;
        std::memcpy(&word, left + r * row_stride + pair * pair_stride, sizeof(word));
        const __m512bh x = (__m512bh)_mm512_set1_epi32(word);
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          sum[r][half] = _mm512_dpbf16_ps(sum[r][half], x, b[half]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int half = 0; half < kHalves; ++half) {
      _mm512_storeu_ps(sums + r * kBlock + half * 16, sum[r][half]);
    }
  }
}

template <int row_stride, int pair_stride>
EMBEDPS_AVX512_BF16 inline void Avx512MultiplyRows(const Bf16* left, const Bf16* right,
                                                   const Extent& extent, int first, float* sums) {
  if (extent.columns > 16) {
    Avx512Rows<2, row_stride, pair_stride>(left, right, extent, sums + first * kBlock);
  } else {
    Avx512Rows<1, row_stride, pair_stride>(left, right, extent, sums + first * kBlock);
  }
}

EMBEDPS_AVX512_BF16 inline void Avx512Clear(const Extent& extent, float* sums) {
  if (extent.columns > 16 && extent.rows > kBlock - kRows) return;
  for (int i = 0; i < kStepValues; i += 16) _mm512_storeu_ps(sums + i, _mm512_setzero_ps());
}

EMBEDPS_AVX512_BF16 void Avx512Multiply(const Bf16* left, const Bf16* right, const Extent& extent,
                                        float* sums) {
  Avx512Clear(extent, sums);
  for (int first = 0; first < extent.rows; first += kRows) {
    Avx512MultiplyRows<kBlock, 2>(left + first * kBlock, right, extent, first, sums);
  }
}

// A turned step has the layout of a right panel. That is fine, as this code broadcasts single
// pairs.
EMBEDPS_AVX512_BF16 void Avx512MultiplyTurned(const Bf16* turned, const Bf16* right,
                                              const Extent& extent, float* sums) {
  Avx512Clear(extent, sums);
  for (int first = 0; first < extent.rows; first += kRows) {
    const Bf16* left = turned + first / 16 * (kStepValues / 2) + first % 16 * 2;
    Avx512MultiplyRows<2, 32>(left, right, extent, first, sums);
  }
}

// The order that interleaves the 16-bit numbers of two registers: n of the first beside n of the
// second.
struct alignas(64) Interleaved {
  uint16_t low[32], high[32];
};

constexpr Interleaved MakeInterleaved() {
  Interleaved order = {};
  for (int n = 0; n < 16; ++n) {
    order.low[2 * n] = n;
    order.low[2 * n + 1] = 32 + n;
    order.high[2 * n] = 16 + n;
    order.high[2 * n + 1] = 48 + n;
  }
  return order;
}

constexpr Interleaved kInterleaved = MakeInterleaved();

template <bool kSums>
EMBEDPS_AVX512_BF16 inline void Avx512PairRows(const Bf16* left, Bf16* right, float* sums) {
  constexpr int kSideBySide = 4;  // independent sums: a single one would wait for each addition
  const __m512i low = _mm512_load_si512(kInterleaved.low);
  const __m512i high = _mm512_load_si512(kInterleaved.high);
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3F80);
  __m512 low_sums[kSideBySide] = {}, high_sums[kSideBySide] = {};
#pragma GCC unroll 16
  for (int pair = 0; pair < 16; ++pair) {
    const __m512i even = _mm512_loadu_si512(left + 2 * pair * kBlock);
    const __m512i odd = _mm512_loadu_si512(left + (2 * pair + 1) * kBlock);
    const __m512i first = _mm512_permutex2var_epi16(even, low, odd);
    const __m512i second = _mm512_permutex2var_epi16(even, high, odd);
    _mm512_storeu_si512(right + pair * 32, first);
    _mm512_storeu_si512(right + kStepValues / 2 + pair * 32, second);
    if (!kSums) continue;
    __m512& low_sum = low_sums[pair % kSideBySide];
    __m512& high_sum = high_sums[pair % kSideBySide];
    low_sum = _mm512_dpbf16_ps(low_sum, (__m512bh)first, ones);
    high_sum = _mm512_dpbf16_ps(high_sum, (__m512bh)second, ones);
  }
  if (!kSums) return;
  _mm512_storeu_ps(sums, (low_sums[0] + low_sums[1]) + (low_sums[2] + low_sums[3]));
  _mm512_storeu_ps(sums + 16, (high_sums[0] + high_sums[1]) + (high_sums[2] + high_sums[3]));
}

EMBEDPS_AVX512_BF16 void Avx512LeftToRight(const Bf16* left, Bf16* right, float* sums) {
  if (sums != nullptr) {
    Avx512PairRows<true>(left, right, sums);
  } else {
    Avx512PairRows<false>(left, right, sums);
  }
}

EMBEDPS_AVX512_BF16 void Avx512Turn(const Bf16* left, Bf16* turned) {
  Avx512PairRows<false>(left, turned, nullptr);
}

EMBEDPS_AVX512_BF16 void Avx512Round(const float* sums, Bf16* to) {
  for (int i = 0; i < kStepValues; i += 32) {
    const __m512bh rounded =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(sums + i + 16), _mm512_loadu_ps(sums + i));
    _mm512_storeu_si512(to + i, (__m512i)rounded);
  }
}

#define EMBEDPS_AMX __attribute__((target("amx-tile,amx-bf16,avx512f")))

// The input of LDTILECFG: all eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

EMBEDPS_AMX void AmxBegin() {
  static const TileConfig config;
  _tile_loadconfig(&config);
}

EMBEDPS_AMX void AmxEnd() { _tile_release(); }

// Ignores rows and columns of the extent: a tile takes the same time with padding.
EMBEDPS_AMX void AmxMultiply(const Bf16* left, const Bf16* right, const Extent& extent,
                             float* sums) {
  constexpr int kHalf = kStepValues / 2, kRowBytes = 64;
  const int64_t steps = NumBlocks(extent.inner);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t s = 0; s < steps; ++s, left += kStepValues, right += kStepValues) {
    _tile_loadd(4, left, kRowBytes);
    _tile_loadd(6, right, kRowBytes);
    _tile_loadd(7, right + kHalf, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, left + kHalf, kRowBytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 2 * kRowBytes);
  _tile_stored(1, sums + 16, 2 * kRowBytes);
  _tile_stored(2, sums + 16 * kBlock, 2 * kRowBytes);
  _tile_stored(3, sums + 16 * kBlock + 16, 2 * kRowBytes);
}

// Asks Linux for permission to use the tiles (Documentation/arch/x86/xstate.rst).
bool AskForTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif  // EMBEDPS_X86

}  // namespace

const std::vector<BlockGemm>& BlockGemms() {
  static const auto* gemms = [] {
    auto* list = new std::vector<BlockGemm>;
    list->push_back({"plain", false, DoNothing, DoNothing, PlainMultiply, PlainMultiply,
                     TransposeLeft, LeftToRight, PlainRound});
#ifdef EMBEDPS_X86
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw")) {
      list->push_back({"avx512-bf16", false, DoNothing, DoNothing, Avx512Multiply,
                       Avx512MultiplyTurned, Avx512Turn, Avx512LeftToRight, Avx512Round});
    }
    if (__builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16") &&
        AskForTiles()) {
      list->push_back({"amx-bf16", true, AmxBegin, AmxEnd, AmxMultiply, AmxMultiply, TransposeLeft,
                       Avx512LeftToRight, Avx512Round});
    }
#endif
    return list;
  }();
  return *gemms;
}

}  // namespace embedps
