#include "embedps/kernels/retrieval/item_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

constexpr double kMaxCode = 127;
constexpr double kUlp = 1.0 / (1 << 24);  // half a unit in the last place of 1.0f
constexpr float kRounding = 3 << 22;      // a small float plus this is an integer
constexpr float kUnderflow = 1e-30f;      // more than what products lose that are almost 0

typedef float Floats __attribute__((vector_size(64), aligned(64), may_alias));
typedef int32_t Integers __attribute__((vector_size(64), aligned(64), may_alias));

float RoundedUp(double value) {
  const float rounded = static_cast<float>(value);
  return std::nextafter(rounded, std::numeric_limits<float>::infinity());
}

}  // namespace

CodedQuery::CodedQuery(const float* values, int dim) : values(values), dim(dim) {
  double squares = 0;
  for (int i = 0; i < dim; ++i) squares += static_cast<double>(values[i]) * values[i];
  norm = RoundedUp(std::sqrt(squares));
}

EMBEDPS_SIMD void EncodeVector(const float* __restrict vector, int dim, int lane,
                               const BlockCodes& codes) {
  // Each sum has parts that do not wait for each other.
  constexpr int kParts = 8;
  const int whole = dim / kParts * kParts;
  float sizes[kParts] = {}, zeros[kParts] = {};
  for (int i = 0; i < whole; i += kParts) {
    for (int part = 0; part < kParts; ++part) {
      const float size = std::abs(vector[i + part]);
      sizes[part] = size > sizes[part] ? size : sizes[part];
      zeros[part] += 0 * vector[i + part];
    }
  }
  for (int i = whole; i < dim; ++i) {
    sizes[0] = std::max(sizes[0], std::abs(vector[i]));
    zeros[0] += 0 * vector[i];
  }
  const float most = *std::max_element(sizes, sizes + kParts);
  bool is_finite = true;
  for (const float zero : zeros) is_finite &= zero == 0;
  const float scale = static_cast<float>(most / kMaxCode);
  const bool is_coded = is_finite && scale >= std::numeric_limits<float>::min();
  // Any codes would do: the bound has what they leave.
  const float inverse = is_coded ? static_cast<float>(kMaxCode / most) : 0.0f;
  double left[kParts] = {}, squares[kParts] = {};
  for (int i = 0; i < whole; i += kParts) {
    int8_t near[kParts];
    for (int part = 0; part < kParts; ++part) {
      const float code = is_coded ? (vector[i + part] * inverse + kRounding) - kRounding : 0;
      const double value = vector[i + part], error = value - code * static_cast<double>(scale);
      near[part] = static_cast<int8_t>(code);
      left[part] += error * error;
      squares[part] += value * value;
    }
    for (int part = 0; part < kParts; ++part)
      codes.numbers[(i + part) * kLanes + lane] = near[part];
  }
  for (int i = whole; i < dim; ++i) {
    const float code = is_coded ? (vector[i] * inverse + kRounding) - kRounding : 0;
    const double value = vector[i], error = value - code * static_cast<double>(scale);
    codes.numbers[i * kLanes + lane] = static_cast<int8_t>(code);
    left[0] += error * error;
    squares[0] += value * value;
  }
  // The sums of products, q . x and q . n, round by (dim + 8) units of |q| |x| at most.
  const double error = std::sqrt(std::accumulate(left, left + kParts, 0.0));
  const double length = std::sqrt(std::accumulate(squares, squares + kParts, 0.0));
  const double rounding = 4 * (dim + 8) * kUlp * (length + error);
  codes.scales[lane] = is_coded ? scale : 0;
  codes.errors[lane] =
      is_finite ? RoundedUp(error + rounding) : std::numeric_limits<float>::infinity();
}

EMBEDPS_SIMD void BoundScores(const BlockCodes& codes, const CodedQuery& query,
                              const BlockCodes& next, float* most) {
  Floats a = {}, b = {}, c = {}, d = {};
  const float* values = query.values;
  for (int i = 0; i < query.dim; ++i) {
    // The next block's pages are elsewhere: the processor does not foresee them.
    __builtin_prefetch(next.numbers + i * kLanes);
    // In two steps: GCC 12 would convert one number at a time.
    alignas(64) int32_t widened[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) widened[lane] = codes.numbers[i * kLanes + lane];
    const Integers* row = reinterpret_cast<const Integers*>(widened);
    a += values[i] * __builtin_convertvector(row[0], Floats);
    b += values[i] * __builtin_convertvector(row[1], Floats);
    c += values[i] * __builtin_convertvector(row[2], Floats);
    d += values[i] * __builtin_convertvector(row[3], Floats);
  }
  const Floats* scales = reinterpret_cast<const Floats*>(codes.scales);
  const Floats* errors = reinterpret_cast<const Floats*>(codes.errors);
  Floats* to = reinterpret_cast<Floats*>(most);
  to[0] = a * scales[0] + (query.norm * errors[0] + kUnderflow);
  to[1] = b * scales[1] + (query.norm * errors[1] + kUnderflow);
  to[2] = c * scales[2] + (query.norm * errors[2] + kUnderflow);
  to[3] = d * scales[3] + (query.norm * errors[3] + kUnderflow);
}

}  // namespace embedps
