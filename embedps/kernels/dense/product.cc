#include "embedps/kernels/dense/product.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define EMBEDPS_X86 1
#include <immintrin.h>
#endif

namespace embedps {
namespace {

constexpr int64_t kLanes = 8;
constexpr int64_t kTileValues = kTileRows * kPanelColumns;

void PlainTile(const float* const* rows, int64_t inner, const float* panel, int /*halves*/,
               float* sums) {
  std::fill_n(sums, kTileValues, 0.0f);
  for (int64_t k = 0; k < inner; ++k, panel += kPanelColumns) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      const float value = rows[r][k];
      for (int64_t n = 0; n < kPanelColumns; ++n) sums[r * kPanelColumns + n] += value * panel[n];
    }
  }
}

#ifdef EMBEDPS_X86

#define EMBEDPS_FMA __attribute__((target("avx2,fma")))

template <int kHalves>
EMBEDPS_FMA inline void FmaHalves(const float* const* rows, int64_t inner, const float* panel,
                                  float* sums) {
  __m256 sum[kTileRows][kHalves];
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) sum[r][h] = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < inner; ++k, panel += kPanelColumns) {
    __m256 right[kHalves];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) right[h] = _mm256_loadu_ps(panel + h * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < kTileRows; ++r) {
      const __m256 value = _mm256_broadcast_ss(rows[r] + k);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) sum[r][h] = _mm256_fmadd_ps(value, right[h], sum[r][h]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      _mm256_storeu_ps(sums + r * kPanelColumns + h * kLanes, sum[r][h]);
    }
  }
}

EMBEDPS_FMA void FmaTile(const float* const* rows, int64_t inner, const float* panel, int halves,
                         float* sums) {
  if (halves > 1) {
    FmaHalves<2>(rows, inner, panel, sums);
  } else {
    FmaHalves<1>(rows, inner, panel, sums);
  }
}

#endif  // EMBEDPS_X86

}  // namespace

const std::vector<ProductTile>& ProductTiles() {
  static const auto* tiles = [] {
    auto* list = new std::vector<ProductTile>{{"plain", false, PlainTile}};
#ifdef EMBEDPS_X86
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      list->push_back({"avx2-fma", true, FmaTile});
    }
#endif
    return list;
  }();
  return *tiles;
}

void PackPanels(const float* right, int64_t inner, int64_t columns, bool transposed, int64_t begin,
                int64_t end, float* packed) {
  for (int64_t p = begin; p < end; ++p) {
    float* __restrict panel = packed + p * inner * kPanelColumns;
    const int64_t first = p * kPanelColumns;
    const int64_t width = std::min(kPanelColumns, columns - first);
    if (width < kPanelColumns) std::fill_n(panel, inner * kPanelColumns, 0.0f);
    if (transposed) {
      for (int64_t n = 0; n < width; ++n) {
        const float* __restrict from = right + (first + n) * inner;
        for (int64_t k = 0; k < inner; ++k) panel[k * kPanelColumns + n] = from[k];
      }
    } else {
      for (int64_t k = 0; k < inner; ++k) {
        std::memcpy(panel + k * kPanelColumns, right + k * columns + first, sizeof(float) * width);
      }
    }
  }
}

void MultiplyTasks(const ProductTile& tile, const float* left, const float* packed, int64_t rows,
                   int64_t inner, int64_t columns, int64_t begin, int64_t end, float* product) {
  const int64_t panels = NumPanels(columns);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task / panels * kChunkRows, p = task % panels;
    const int64_t column = p * kPanelColumns;
    const int64_t last = std::min(first + kChunkRows, rows);
    const int64_t width = std::min(kPanelColumns, columns - column);
    for (int64_t row = first; row < last; row += kTileRows) {
      const int64_t num_rows = std::min(kTileRows, last - row);
      const float* tile_rows[kTileRows];
      for (int64_t r = 0; r < kTileRows; ++r) {
        tile_rows[r] = left + (row + std::min(r, num_rows - 1)) * inner;
      }
      alignas(64) float sums[kTileValues];
      tile.multiply(tile_rows, inner, packed + p * inner * kPanelColumns, width > kLanes ? 2 : 1,
                    sums);
      for (int64_t r = 0; r < num_rows; ++r) {
        std::memcpy(product + (row + r) * columns + column, sums + r * kPanelColumns,
                    sizeof(float) * width);
      }
    }
  }
}

void SoftmaxRows(const float* logits, int64_t rows, int64_t columns, bool log, float* out) {
  for (int64_t row = 0; row < rows; ++row, logits += columns, out += columns) {
    float greatest = logits[0];
    for (int64_t n = 1; n < columns; ++n) greatest = std::max(greatest, logits[n]);
    float sum = 0;
    for (int64_t n = 0; n < columns; ++n) sum += out[n] = std::exp(logits[n] - greatest);
    const float shift = log ? greatest + std::log(sum) : 0.0f;
    for (int64_t n = 0; n < columns; ++n) out[n] = log ? logits[n] - shift : out[n] / sum;
  }
}

}  // namespace embedps
