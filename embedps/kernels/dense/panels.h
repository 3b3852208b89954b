// Making the panels that BlockGemm multiplies.
#ifndef EMBEDPS_KERNELS_DENSE_PANELS_H_
#define EMBEDPS_KERNELS_DENSE_PANELS_H_

#include <cstdint>

#include "embedps/kernels/dense/block_gemm.h"

namespace embedps {

// The first multiple of 64 bytes, as tiles are read fastest; needs 31 values of room.
inline Bf16* AlignedBf16(Bf16* data) {
  return reinterpret_cast<Bf16*>((reinterpret_cast<uintptr_t>(data) + 63) / 64 * 64);
}

// to[j][i] = from[i][j], 16 x 16 words. Of 16 rows of a left panel's step it makes the half of a
// right one: the columns of the product are those rows then.
void TransposeWords(const uint32_t* from, uint32_t* to);

// A step of a right panel from float32 [rows, columns] with `stride` floats from row to row; what
// is past `rows` or `columns` is zero.
void PackRight(const float* from, int64_t stride, int rows, int columns, Bf16* to);

// A step of a right panel from the transpose of float32 [columns, rows].
void PackRightTransposed(const float* from, int64_t stride, int rows, int columns, Bf16* to);

// As BlockGemm::left_to_right, for any CPU.
void LeftToRight(const Bf16* left, Bf16* right, float* sums);

// The transpose of a step of a left panel.
void TransposeLeft(const Bf16* from, Bf16* to);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_PANELS_H_
