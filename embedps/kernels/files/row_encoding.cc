#include "embedps/kernels/files/row_encoding.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace embedps {
namespace {

constexpr float kMaxMagnitude = 0x1p125f;

// The offset and the scale are multiples of 2^(e - 21), where 2^e is the greatest value's binade,
// and of the least normal float. So every offset + scale * code is one too, and with what rounding
// up adds stays under 2^(e + 3): 24 bits hold it, and scale * code as well.
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
    finite &= std::fabs(values[d]) < kMaxMagnitude;  // false of a NaN
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
    // Exact, whatever the product was rounded to: the middle is a multiple of half a unit.
    put(d, below + (values[d] > first + step * (below + 0.5)));
  }
  *scale = static_cast<float>(step);
  *offset = static_cast<float>(first);
}

}  // namespace

const char* Name(RowEncoding encoding) {
  switch (encoding) {
    case RowEncoding::kFloat32:
      return "float32";
    case RowEncoding::kInt8:
      return "int8";
    case RowEncoding::kInt4:
      return "int4";
  }
  return "";
}

const char* Name(SlotEncoding encoding) {
  return encoding == SlotEncoding::kFloat32 ? "float32" : "bfloat16";
}

Status Parse(const std::string& name, RowEncoding* encoding) {
  for (const RowEncoding each : {RowEncoding::kFloat32, RowEncoding::kInt8, RowEncoding::kInt4}) {
    *encoding = each;
    if (name == Name(each)) return Status::Ok();
  }
  return Status::InvalidArgument("rows must be 'float32', 'int8' or 'int4' but is '" + name + "'");
}

Status Parse(const std::string& name, SlotEncoding* encoding) {
  for (const SlotEncoding each : {SlotEncoding::kFloat32, SlotEncoding::kBfloat16}) {
    *encoding = each;
    if (name == Name(each)) return Status::Ok();
  }
  return Status::InvalidArgument("optimizer slots must be 'float32' or 'bfloat16' but is '" + name +
                                 "'");
}

int CodeBytes(RowEncoding encoding, int dim) {
  return encoding == RowEncoding::kInt4 ? (dim + 1) / 2 : dim;
}

void EncodeRow(RowEncoding encoding, const float* values, int dim, uint8_t* codes, float* scale,
               float* offset) {
  if (encoding == RowEncoding::kInt8) {
    Quantize<255>(values, dim, scale, offset,
                  [codes](int d, int code) { codes[d] = static_cast<uint8_t>(code); });
    return;
  }
  std::fill_n(codes, CodeBytes(encoding, dim), uint8_t{0});
  Quantize<15>(values, dim, scale, offset, [codes](int d, int code) {
    codes[d / 2] |= static_cast<uint8_t>(code << (d % 2 * 4));
  });
}

void DecodeRow(RowEncoding encoding, const uint8_t* codes, float scale, float offset, int dim,
               float* values) {
  if (encoding == RowEncoding::kInt8) {
    for (int d = 0; d < dim; ++d) values[d] = offset + scale * static_cast<float>(codes[d]);
    return;
  }
  for (int d = 0; d < dim; ++d) {
    values[d] = offset + scale * static_cast<float>(codes[d / 2] >> (d % 2 * 4) & 15);
  }
}

uint16_t ToBfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float FromBfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

}  // namespace embedps
