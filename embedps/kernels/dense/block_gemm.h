// Products of bfloat16 panels, summed in float32: the inner loop of a dense network.
//
// The contraction has steps of 32 values. A step of a left panel is 32 rows of 32 values. A step of
// a right panel is two halves of 16 columns each. A half has 16 pairs of contraction values per
// column: value (k, n) is at (n / 16) * 512 + (k / 2) * 32 + (n % 16) * 2 + k % 2. AMX multiplies
// this layout (Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS).
#ifndef EMBEDPS_KERNELS_DENSE_BLOCK_GEMM_H_
#define EMBEDPS_KERNELS_DENSE_BLOCK_GEMM_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/runtime/bf16.h"

namespace embedps {

inline constexpr int kBlock = 32;
inline constexpr int64_t kStepValues = kBlock * kBlock;  // values in a step of a panel

inline int64_t NumBlocks(int64_t n) { return (n + kBlock - 1) / kBlock; }

// The part of panels that is not padding. Padding is zero. Products of padding are skipped where
// that saves time.
struct Extent {
  int64_t inner;         // contraction values; the panels have NumBlocks(inner) steps
  int rows = kBlock;     // of the left panel
  int columns = kBlock;  // of the right panel
};

// An implementation for one instruction set. A thread calls `begin` before its products and `end`
// after them.
struct BlockGemm {
  const char* name;
  bool has_tiles;  // multiplies one step in tens of cycles
  void (*begin)();
  void (*end)();
  // sums [32][32] = the product of a left and a right panel.
  void (*multiply)(const Bf16* left, const Bf16* right, const Extent& extent, float* sums);
  // The same for a left panel whose steps `turn` made.
  void (*multiply_turned)(const Bf16* turned, const Bf16* right, const Extent& extent, float* sums);
  // Transposes a step of a left panel, for `multiply_turned`: the step's rows become the
  // contraction.
  void (*turn)(const Bf16* left, Bf16* turned);
  // Makes a step of a right panel from a step of a left one, whose rows become the contraction.
  // Sets `sums` [32] to the sums of the columns unless it is null.
  void (*left_to_right)(const Bf16* left, Bf16* right, float* sums);
  // Rounds sums [32][32] to bfloat16. Denormal numbers may become zero, as in the products.
  void (*round)(const float* sums, Bf16* to);
};

// Returns the implementations that this machine can run: plain C++ first, the fastest one last.
const std::vector<BlockGemm>& BlockGemms();

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_BLOCK_GEMM_H_
