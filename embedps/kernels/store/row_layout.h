// Where a row's floats are, and in what dtypes: after the header the embedding, then the optimizer
// slots. Each part begins at a multiple of 4 bytes. In a store whose coldest rows are on disk the
// floats of the others are in a BodyArena, and after the header is their slot's number.
#ifndef EMBEDPS_KERNELS_STORE_ROW_LAYOUT_H_
#define EMBEDPS_KERNELS_STORE_ROW_LAYOUT_H_

#include <cstddef>
#include <vector>

#include "embedps/kernels/files/row_encoding.h"
#include "embedps/kernels/runtime/float_dtype.h"
#include "embedps/kernels/store/body_arena.h"
#include "embedps/kernels/store/row_place.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

class RowLayout {
 public:
  // `slot_floats` counts the floats of all optimizer slots. `arena` outlives the object; null if
  // the floats are behind the headers.
  RowLayout(int dim, int slot_floats, FloatDtype row_dtype, FloatDtype slot_dtype,
            const BodyArena* arena = nullptr)
      : dim(dim),
        slot_floats(slot_floats),
        row_dtype(row_dtype),
        slot_dtype(slot_dtype),
        slots_at_(PaddedBytes(row_dtype, dim)),
        body_bytes_(slots_at_ + PaddedBytes(slot_dtype, slot_floats)),
        arena_(arena) {}

  const int dim;
  const int slot_floats;
  const FloatDtype row_dtype;
  const FloatDtype slot_dtype;

  // Of header and floats, of the floats alone, and of what a stripe has for each row.
  size_t row_bytes() const { return kHeaderBytes + body_bytes_; }
  size_t body_bytes() const { return body_bytes_; }
  size_t head_bytes() const { return arena_ == nullptr ? row_bytes() : sizeof(RowHead); }
  // Whether a row is on disk, and if so whether its norm is small (row_place.h).
  bool IsOnDisk(const RowHeader& row) const {
    return arena_ != nullptr && (PlaceOf(row) & kOnDisk) != 0;
  }
  static bool IsSmallOnDisk(const RowHeader& row) { return (PlaceOf(row) & kSmallNorm) != 0; }
  bool is_float32() const {
    return row_dtype == FloatDtype::kFloat32 && slot_dtype == FloatDtype::kFloat32;
  }

  // Return how a file stores such rows exactly.
  EmbeddingEncoding embedding_encoding() const;
  OptimizerSlotEncoding optimizer_slot_encoding() const;

  // Return the stored floats. Of a row on disk there are none.
  const char* Embedding(const RowHeader& row) const {
    if (arena_ != nullptr) return arena_->At(PlaceOf(row))->floats();
    return reinterpret_cast<const char*>(&row) + kHeaderBytes;
  }
  char* Embedding(RowHeader* row) const { return const_cast<char*>(Embedding(*row)); }
  char* OptimizerSlots(RowHeader* row) const { return Embedding(row) + slots_at_; }

  // Read an embedding, or `width` floats of the optimizer slots from float `first` on.
  void ReadEmbedding(const RowHeader& row, float* to) const {
    Widen(row_dtype, Embedding(row), dim, to);
  }
  void ReadOptimizerSlots(const RowHeader& row, int first, int width, float* to) const {
    const char* slots = Embedding(row) + slots_at_;
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

  const size_t slots_at_;  // from the first float on
  const size_t body_bytes_;
  const BodyArena* const arena_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_LAYOUT_H_
