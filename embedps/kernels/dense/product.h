// Products of float32 matrices whose rows have the same bits in any batch.
//
// Each value is a sum in order of the inner dimension, by the same instructions wherever its row
// lies. TensorFlow's products choose instructions by the number of rows and of threads: with AVX2,
// these sum in other orders.
#ifndef EMBEDPS_KERNELS_DENSE_PRODUCT_H_
#define EMBEDPS_KERNELS_DENSE_PRODUCT_H_

#include <cstdint>
#include <vector>

namespace embedps {

inline constexpr int64_t kPanelColumns = 16;
inline constexpr int64_t kTileRows = 6;  // whose sums fit into the registers of AVX2
inline constexpr int64_t kChunkRows = 8 * kTileRows;

// Returns how many panels of columns, or chunks of rows, hold n.
inline int64_t NumPanels(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
inline int64_t NumChunks(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

// An implementation for one instruction set.
struct ProductTile {
  const char* name;
  bool is_fused;  // rounds once per product and sum, not twice
  // Computes the sums [kTileRows][kPanelColumns] of `rows` times a panel: at least those of its
  // first 8 * halves columns.
  void (*multiply)(const float* const* rows, int64_t inner, const float* panel, int halves,
                   float* sums);
};

// Returns the tiles that this machine can run: plain C++ first, the fastest one last.
const std::vector<ProductTile>& ProductTiles();

// Packs panels [begin, end) of the right matrix, [inner, columns] or its transpose, into
// packed [panels][inner][kPanelColumns], with zeros past the last column.
void PackPanels(const float* right, int64_t inner, int64_t columns, bool transposed, int64_t begin,
                int64_t end, float* packed);

// Computes tasks [begin, end) of left [rows, inner] times the packed matrix. Task t is chunk
// t / panels of rows, panel t % panels of columns. All rows of all batches come from one tile.
void MultiplyTasks(const ProductTile& tile, const float* left, const float* packed, int64_t rows,
                   int64_t inner, int64_t columns, int64_t begin, int64_t end, float* product);

// Computes the softmax of each row of [rows, columns], or its logarithm. There is a column.
void SoftmaxRows(const float* logits, int64_t rows, int64_t columns, bool log, float* out);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_PRODUCT_H_
