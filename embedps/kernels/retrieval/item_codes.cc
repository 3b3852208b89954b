#include "embedps/kernels/retrieval/item_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

constexpr double kMaxCode = 127;
constexpr double kUlp = 1.0 / (1 << 24);  // half a unit in the last place of 1.0f
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

void EncodeVector(const float* vector, int dim, int lane, const BlockCodes& codes) {
  float most = 0;
  bool is_finite = true;
  for (int i = 0; i < dim; ++i) {
    is_finite &= std::isfinite(vector[i]);
    most = std::max(most, std::abs(vector[i]));
  }
  const float scale = static_cast<float>(most / kMaxCode);
  const bool is_coded = is_finite && scale >= std::numeric_limits<float>::min();
  double left = 0, squares = 0;
  for (int i = 0; i < dim; ++i) {
    const double code = is_coded ? std::nearbyint(vector[i] / static_cast<double>(scale)) : 0;
    codes.numbers[i * kLanes + lane] = static_cast<int8_t>(code);
    const double error = vector[i] - (is_coded ? code * scale : 0);
    left += error * error;
    squares += static_cast<double>(vector[i]) * vector[i];
  }
  // The sums of products, q . x and q . n, round by (dim + 8) units of |q| |x| at most.
  const double error = std::sqrt(left);
  const double rounding = 4 * (dim + 8) * kUlp * (std::sqrt(squares) + error);
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
