#include "embedps/kernels/files/row_encoding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/names.h"

namespace embedps {
namespace {

constexpr float kMaxMagnitude = 0x1p125f;

// Returns the unit that offset and scale are multiples of: 2^(e - 21), where 2^e is the binade of
// the greatest value, and at least the least normal float. So every offset + scale * code is a
// multiple too. Rounding up keeps it under 2^(e + 3), so 24 bits hold it, and scale * code as well.
double UnitOf(float magnitude) {
  return std::ldexp(1.0, std::max(std::ilogb(magnitude) - 21, -126));
}

template <int kLevels, typename Put>
void Quantize(const float* values, int dim, float* scale, float* offset, const Put& put) {
  float low = values[0], high = values[0];
  bool finite = true;
  for (int d = 0; d < dim; ++d) {
    low = std::min(low, values[d]);
    high = std::max(high, values[d]);
    finite &= std::fabs(values[d]) < kMaxMagnitude;  // false for a NaN
  }
  if (!finite || low == high) {
    *scale = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    *offset = finite ? low : *scale;
    for (int d = 0; d < dim; ++d) put(d, 0);
    return;
  }
  const double unit = UnitOf(std::max(-low, high));
  const double first = std::floor(low / unit) * unit;
  const double step = std::ceil((high - first) / (kLevels * unit)) * unit;
  const double per_step = 1 / step;
  for (int d = 0; d < dim; ++d) {
    const int below = static_cast<int>((values[d] - first) * per_step);
    // Exact however the product was rounded: the middle is a multiple of half a unit.
    put(d, below + (values[d] > first + step * (below + 0.5)));
  }
  *scale = static_cast<float>(step);
  *offset = static_cast<float>(first);
}

}  // namespace

const char* Name(EmbeddingEncoding encoding) {
  return kEmbeddingEncodings[static_cast<int>(encoding)];
}

const char* Name(OptimizerSlotEncoding encoding) {
  return kOptimizerSlotEncodings[static_cast<int>(encoding)];
}

Status Parse(const std::string& name, EmbeddingEncoding* encoding) {
  return ParseName("embedding encoding", kEmbeddingEncodings, name, encoding);
}

Status Parse(const std::string& name, OptimizerSlotEncoding* encoding) {
  return ParseName("optimizer slot encoding", kOptimizerSlotEncodings, name, encoding);
}

int CodeBytes(EmbeddingEncoding encoding, int dim) {
  return encoding == EmbeddingEncoding::kInt4 ? (dim + 1) / 2 : dim;
}

void EncodeRow(EmbeddingEncoding encoding, const float* values, int dim, uint8_t* codes,
               float* scale, float* offset) {
  if (encoding == EmbeddingEncoding::kInt8) {
    Quantize<kInt8Levels>(values, dim, scale, offset,
                          [codes](int d, int code) { codes[d] = static_cast<uint8_t>(code); });
    return;
  }
  std::fill_n(codes, CodeBytes(encoding, dim), uint8_t{0});
  Quantize<kInt4Levels>(values, dim, scale, offset, [codes](int d, int code) {
    codes[d / 2] |= static_cast<uint8_t>(code << (d % 2 * 4));
  });
}

void DecodeRow(EmbeddingEncoding encoding, const uint8_t* codes, float scale, float offset, int dim,
               float* values) {
  if (encoding == EmbeddingEncoding::kInt8) {
    for (int d = 0; d < dim; ++d) values[d] = offset + scale * static_cast<float>(codes[d]);
    return;
  }
  for (int d = 0; d < dim; ++d) {
    values[d] = offset + scale * static_cast<float>(codes[d / 2] >> (d % 2 * 4) & 15);
  }
}

}  // namespace embedps
