// How a row file stores the floats of a row: as float32 or in fewer bits. Plain C++17.
//
// An embedding of bfloat16 or float16 is rounded to the nearest. A store whose rows have that dtype
// has only such values, so its files hold the rows bit for bit.
//
// A quantized embedding is offset + scale * code, with one code of 8 or 4 bits per value and one
// scale and offset per row. Scale and offset are multiples of one power of two. It is chosen so
// that the formula is exact in float32 for every code. So every reader decodes the same bits, in
// whatever order it computes, and no value differs from the encoded one by more than scale / 2. A
// row of equal values has scale 0 and is exact. A row with a value that is not finite, or of
// magnitude 2^125 or more, has scale and offset NaN.
#ifndef EMBEDPS_KERNELS_FILES_ROW_ENCODING_H_
#define EMBEDPS_KERNELS_FILES_ROW_ENCODING_H_

#include <cstdint>
#include <string>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Their names are kEmbeddingEncodings and kOptimizerSlotEncodings of runtime/constants.h.
enum class EmbeddingEncoding { kFloat32, kInt8, kInt4, kBfloat16, kFloat16 };
enum class OptimizerSlotEncoding { kFloat32, kBfloat16 };

const char* Name(EmbeddingEncoding encoding);
const char* Name(OptimizerSlotEncoding encoding);
Status Parse(const std::string& name, EmbeddingEncoding* encoding);
Status Parse(const std::string& name, OptimizerSlotEncoding* encoding);

// Returns the number of bytes for the codes of a quantized embedding.
int CodeBytes(EmbeddingEncoding encoding, int dim);

// Encode and decode the embedding of one row. int4 stores the first of two values in the lower four
// bits of a byte.
void EncodeRow(EmbeddingEncoding encoding, const float* values, int dim, uint8_t* codes,
               float* scale, float* offset);
void DecodeRow(EmbeddingEncoding encoding, const uint8_t* codes, float scale, float offset, int dim,
               float* values);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_ENCODING_H_
