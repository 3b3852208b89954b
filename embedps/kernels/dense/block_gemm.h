// Products of bfloat16 panels, summed in float32: the inner loop of a dense network.
//
// The contraction goes in steps of 32. A step of a left panel is 32 rows of 32 values; a step of a
// right panel is two halves of 16 columns each, a half being 16 pairs of contraction values for
// each column: value (k, n) stands at (n / 16) * 512 + (k / 2) * 32 + (n % 16) * 2 + k % 2. That is
// what AMX multiplies (Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS).
#ifndef EMBEDPS_KERNELS_DENSE_BLOCK_GEMM_H_
#define EMBEDPS_KERNELS_DENSE_BLOCK_GEMM_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/runtime/bf16.h"

namespace embedps {

inline constexpr int kBlock = 32;
inline constexpr int64_t kStepValues = kBlock * kBlock;  // of a panel

inline int64_t NumBlocks(int64_t n) { return (n + kBlock - 1) / kBlock; }

// How much of panels is more than padding, which is zero: products that nothing comes of are left
// out where that saves time.
struct Extent {
  int64_t inner;         // contraction values; the panels have NumBlocks(inner) steps
  int rows = kBlock;     // of the left panel
  int columns = kBlock;  // of the right panel
};

// One way to multiply. A thread calls `begin` before its products and `end` after them.
struct BlockGemm {
  const char* name;
  bool has_tiles;  // multiplies a step in some tens of cycles
  void (*begin)();
  void (*end)();
  // sums [32][32] = the product of a left and a right panel.
  void (*multiply)(const Bf16* left, const Bf16* right, const Extent& extent, float* sums);
  // The same of a left panel whose steps `turn` made.
  void (*multiply_turned)(const Bf16* turned, const Bf16* right, const Extent& extent, float* sums);
  // Of a step of a left panel, whose rows are the contraction now, a step for `multiply_turned`
  // whose rows are its columns.
  void (*turn)(const Bf16* left, Bf16* turned);
  // A step of a right panel from a step of a left one, whose rows are the contraction now. `sums`
  // [32], unless null, become the columns' sums.
  void (*left_to_right)(const Bf16* left, Bf16* right, float* sums);
  // Rounds sums [32][32]. Denormal ones may become zero, as the products take them.
  void (*round)(const float* sums, Bf16* to);
};

// Those that this machine runs, the fastest last; the first is plain C++.
const std::vector<BlockGemm>& BlockGemms();

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_BLOCK_GEMM_H_
