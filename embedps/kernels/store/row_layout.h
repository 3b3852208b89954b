// Where a row's floats are, and in what dtypes: after the header the embedding, then the optimizer
// slots. Each part begins at a multiple of 4 bytes.
#ifndef EMBEDPS_KERNELS_STORE_ROW_LAYOUT_H_
#define EMBEDPS_KERNELS_STORE_ROW_LAYOUT_H_

#include <cstddef>
#include <vector>

#include "embedps/kernels/files/row_encoding.h"
#include "embedps/kernels/runtime/float_dtype.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

class RowLayout {
 public:
  // `slot_floats` counts the floats of all optimizer slots.
  RowLayout(int dim, int slot_floats, FloatDtype row_dtype, FloatDtype slot_dtype)
      : dim(dim),
        slot_floats(slot_floats),
        row_dtype(row_dtype),
        slot_dtype(slot_dtype),
        slots_at_(kHeaderBytes + PaddedBytes(row_dtype, dim)),
        row_bytes_(slots_at_ + PaddedBytes(slot_dtype, slot_floats)) {}

  const int dim;
  const int slot_floats;
  const FloatDtype row_dtype;
  const FloatDtype slot_dtype;

  size_t row_bytes() const { return row_bytes_; }
  bool is_float32() const {
    return row_dtype == FloatDtype::kFloat32 && slot_dtype == FloatDtype::kFloat32;
  }

  // Return how a file stores such rows exactly.
  EmbeddingEncoding embedding_encoding() const;
  OptimizerSlotEncoding optimizer_slot_encoding() const;

  // Return the stored floats.
  char* Embedding(RowHeader* row) const { return reinterpret_cast<char*>(row) + kHeaderBytes; }
  char* OptimizerSlots(RowHeader* row) const { return reinterpret_cast<char*>(row) + slots_at_; }

  // Read an embedding, or `width` floats of the optimizer slots from float `first` on.
  void ReadEmbedding(const RowHeader& row, float* to) const {
    Widen(row_dtype, reinterpret_cast<const char*>(&row) + kHeaderBytes, dim, to);
  }
  void ReadOptimizerSlots(const RowHeader& row, int first, int width, float* to) const {
    const char* slots = reinterpret_cast<const char*>(&row) + slots_at_;
    Widen(slot_dtype, slots + first * FloatBytes(slot_dtype), width, to);
  }

  // Returns the embedding's squared L2 norm, summed in double and in order. May leave floats out
  // once the sum is `enough`.
  double SquaredNorm(const RowHeader& row, double enough) const;

  // Write floats, rounded to the nearest.
  void WriteEmbedding(const float* from, RowHeader* row) const {
    RoundToNearest(row_dtype, from, dim, Embedding(row));
  }
  void WriteOptimizerSlots(const float* from, int first, int width, RowHeader* row) const {
    char* to = OptimizerSlots(row) + first * FloatBytes(slot_dtype);
    RoundToNearest(slot_dtype, from, width, to);
  }
  void WriteOptimizerSlots(const std::vector<float>& all, RowHeader* row) const {
    WriteOptimizerSlots(all.data(), 0, static_cast<int>(all.size()), row);
  }

 private:
  static size_t PaddedBytes(FloatDtype dtype, int floats) {
    return (FloatBytes(dtype) * floats + 3) / 4 * 4;
  }

  const size_t slots_at_;
  const size_t row_bytes_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_LAYOUT_H_
