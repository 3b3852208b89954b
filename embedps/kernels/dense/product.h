// Products of float32 matrices whose rows have the same bits in any batch.
//
// Each value is a sum in order of the inner dimension, by the same instructions wherever its row
// lies. TensorFlow's products choose instructions by the number of rows and of threads: with AVX2,
// these sum in other orders.
#ifndef EMBEDPS_KERNELS_DENSE_PRODUCT_H_
#define EMBEDPS_KERNELS_DENSE_PRODUCT_H_

#include <cstdint>

namespace embedps {

inline constexpr int64_t kPanelColumns = 16;
inline constexpr int64_t kChunkRows = 48;

// Returns how many panels of columns, or chunks of rows, hold n.
inline int64_t NumPanels(int64_t columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
inline int64_t NumChunks(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

// Packs panels [begin, end) of the right matrix, [inner, columns] or its transpose, into
// packed [panels][inner][kPanelColumns], with zeros past the last column.
void PackPanels(const float* right, int64_t inner, int64_t columns, bool transposed, int64_t begin,
                int64_t end, float* packed);

// Computes tasks [begin, end) of left [rows, inner] times the packed matrix. Task t is chunk
// t / panels of rows, panel t % panels of columns.
void MultiplyTasks(const float* left, const float* packed, int64_t rows, int64_t inner,
                   int64_t columns, int64_t begin, int64_t end, float* product);

// Computes the softmax of each row of [rows, columns], or its logarithm.
void SoftmaxRows(const float* logits, int64_t rows, int64_t columns, bool log, float* out);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_PRODUCT_H_
