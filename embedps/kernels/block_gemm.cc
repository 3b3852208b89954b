#include "embedps/kernels/block_gemm.h"

#include <cstring>

#include "embedps/kernels/simd.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define EMBEDPS_X86 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace embedps {
namespace {

void Nothing() {}

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));

EMBEDPS_SIMD void PlainMultiply(const Bf16* left, const Bf16* right, int64_t steps, float* sums) {
  std::memset(sums, 0, sizeof(float) * kStepValues);
  for (int64_t s = 0; s < steps; ++s, left += kStepValues, right += kStepValues) {
    for (int row = 0; row < kBlock; ++row) {
      const Bf16* __restrict a = left + row * kBlock;
      for (int half = 0; half < 2; ++half) {
        Floats& to = *reinterpret_cast<Floats*>(sums + row * kBlock + half * 16);
        Floats sum = to;
        const Bf16* b = right + half * (kStepValues / 2);
        for (int pair = 0; pair < 16; ++pair) {
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

EMBEDPS_SIMD void PlainRound(const float* __restrict sums, Bf16* __restrict to) {
  for (int i = 0; i < kStepValues; ++i) to[i] = ToBf16(sums[i]);
}

#ifdef EMBEDPS_X86

#define EMBEDPS_AVX512_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

EMBEDPS_AVX512_BF16 void Avx512Multiply(const Bf16* left, const Bf16* right, int64_t steps,
                                        float* sums) {
  constexpr int kRows = 8;  // at once: 16 registers of sums
  for (int first = 0; first < kBlock; first += kRows) {
    __m512 sum[kRows][2];
    for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t s = 0; s < steps; ++s) {
      const Bf16* a = left + s * kStepValues + first * kBlock;
      const Bf16* b = right + s * kStepValues;
      for (int pair = 0; pair < 16; ++pair) {
        const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b + pair * 32);
        const __m512bh b1 = (__m512bh)_mm512_loadu_si512(b + kStepValues / 2 + pair * 32);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          int word;
          std::memcpy(&word, a + r * kBlock + 2 * pair, sizeof(word));
          const __m512bh x = (__m512bh)_mm512_set1_epi32(word);
          sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
          sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      _mm512_storeu_ps(sums + (first + r) * kBlock, sum[r][0]);
      _mm512_storeu_ps(sums + (first + r) * kBlock + 16, sum[r][1]);
    }
  }
}

EMBEDPS_AVX512_BF16 void Avx512Round(const float* sums, Bf16* to) {
  for (int i = 0; i < kStepValues; i += 32) {
    const __m512bh rounded =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(sums + i + 16), _mm512_loadu_ps(sums + i));
    _mm512_storeu_si512(to + i, (__m512i)rounded);
  }
}

#define EMBEDPS_AMX __attribute__((target("amx-tile,amx-bf16,avx512f")))

// What LDTILECFG reads: all eight tiles are 16 rows of 64 bytes.
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

EMBEDPS_AMX void AmxMultiply(const Bf16* left, const Bf16* right, int64_t steps, float* sums) {
  constexpr int kHalf = kStepValues / 2, kRowBytes = 64;
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

// Linux grants a process the tiles' state when it asks (Documentation/arch/x86/xstate.rst).
bool AskForTiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#endif  // EMBEDPS_X86

}  // namespace

const std::vector<BlockGemm>& BlockGemms() {
  static const auto* gemms = [] {
    auto* list = new std::vector<BlockGemm>;
    list->push_back({"plain", false, Nothing, Nothing, PlainMultiply, PlainRound});
#ifdef EMBEDPS_X86
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw")) {
      list->push_back({"avx512-bf16", false, Nothing, Nothing, Avx512Multiply, Avx512Round});
    }
    if (__builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("avx512bf16") &&
        AskForTiles()) {
      list->push_back({"amx-bf16", true, AmxBegin, AmxEnd, AmxMultiply, Avx512Round});
    }
#endif
    return list;
  }();
  return *gemms;
}

}  // namespace embedps
