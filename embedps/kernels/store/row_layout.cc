#include "embedps/kernels/store/row_layout.h"

#include <algorithm>

namespace embedps {

EmbeddingEncoding RowLayout::embedding_encoding() const {
  switch (row_dtype) {
    case FloatDtype::kFloat32:
      return EmbeddingEncoding::kFloat32;
    case FloatDtype::kBfloat16:
      return EmbeddingEncoding::kBfloat16;
    case FloatDtype::kFloat16:
      return EmbeddingEncoding::kFloat16;
  }
  return EmbeddingEncoding::kFloat32;
}

OptimizerSlotEncoding RowLayout::optimizer_slot_encoding() const {
  return slot_dtype == FloatDtype::kFloat32 ? OptimizerSlotEncoding::kFloat32
                                            : OptimizerSlotEncoding::kBfloat16;
}

double RowLayout::SquaredNorm(const RowHeader& row, double enough) const {
  const char* embedding = Embedding(row);
  constexpr int kAtOnce = 16;
  float values[kAtOnce];
  double sum = 0;
  // The sum never decreases.
  for (int first = 0; first < dim && !(sum >= enough); first += kAtOnce) {
    const int count = std::min(kAtOnce, dim - first);
    Widen(row_dtype, embedding + first * FloatBytes(row_dtype), count, values);
    for (int i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  }
  return sum;
}

}  // namespace embedps
