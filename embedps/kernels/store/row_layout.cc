#include "embedps/kernels/store/row_layout.h"

#include <algorithm>

namespace embedps {

double RowLayout::SquaredNorm(const RowHeader& row) const {
  const char* embedding = reinterpret_cast<const char*>(&row) + kHeaderBytes;
  constexpr int kAtOnce = 64;
  float values[kAtOnce];
  double sum = 0;
  for (int first = 0; first < dim; first += kAtOnce) {
    const int count = std::min(kAtOnce, dim - first);
    Widen(row_dtype, embedding + first * FloatBytes(row_dtype), count, values);
    for (int i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  }
  return sum;
}

}  // namespace embedps
