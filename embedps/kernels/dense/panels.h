// Makes the panels that BlockGemm multiplies.
#ifndef EMBEDPS_KERNELS_DENSE_PANELS_H_
#define EMBEDPS_KERNELS_DENSE_PANELS_H_

#include <cstdint>

#include "embedps/kernels/dense/block_gemm.h"

namespace embedps {

// Rounds up to a multiple of 64 bytes, where tiles are read fastest. Needs room for 31 more values.
inline Bf16* AlignedBf16(Bf16* data) {
  return reinterpret_cast<Bf16*>((reinterpret_cast<uintptr_t>(data) + 63) / 64 * 64);
}

// Sets to[j][i] = from[i][j] for 16 x 16 words. From 16 rows of a left panel's step it makes half a
// step of a right panel, with these rows as columns.
void TransposeWords(const uint32_t* from, uint32_t* to);

// Makes a step of a right panel from float32 [rows, columns] with `stride` floats from row to row.
// Fills it with zeros past `rows` and `columns`.
void PackRight(const float* from, int64_t stride, int rows, int columns, Bf16* to);

// Makes a step of a right panel from the transpose of float32 [columns, rows].
void PackRightTransposed(const float* from, int64_t stride, int rows, int columns, Bf16* to);

// Implements BlockGemm::left_to_right for any CPU.
void LeftToRight(const Bf16* left, Bf16* right, float* sums);

// Transposes a step of a left panel.
void TransposeLeft(const Bf16* from, Bf16* to);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_PANELS_H_
