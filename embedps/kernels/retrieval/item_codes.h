// Vectors in a quarter of their bytes, from which a score is known up to a bound.
//
// A vector x is s * n + e: n are integers of 8 bits, s a scale, e what is left. So a query's exact
// product with x differs from s * (q . n) by |q| |e| at most, and a sum of floats from the exact
// one by its rounding errors. A search reads the codes of all vectors, but only those vectors of
// which the bound says that they may be among the best.
#ifndef EMBEDPS_KERNELS_RETRIEVAL_ITEM_CODES_H_
#define EMBEDPS_KERNELS_RETRIEVAL_ITEM_CODES_H_

#include <cstdint>

namespace embedps {

constexpr int kLanes = 64;  // vectors of a block

// The codes of a block's vectors.
struct BlockCodes {
  int8_t* numbers;  // n, [dim, kLanes]
  float* scales;    // s
  float* errors;    // for a query of length 1, what a score differs at most; rounded up
};

// A query with what bounds need.
struct CodedQuery {
  CodedQuery(const float* values, int dim);

  const float* values;
  int dim;
  float norm;  // rounded up
};

// Sets the codes of one lane to a vector.
void EncodeVector(const float* vector, int dim, int lane, const BlockCodes& codes);

// Computes for each lane a number that its score does not exceed, `most` [kLanes]: the score is the
// sum of the products in any order, in float32, with or without fused multiply-adds. It is not a
// number where the vector or the query has something that is none. Fetches `next` meanwhile.
void BoundScores(const BlockCodes& codes, const CodedQuery& query, const BlockCodes& next,
                 float* most);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RETRIEVAL_ITEM_CODES_H_
