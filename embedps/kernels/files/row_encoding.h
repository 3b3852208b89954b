// How a row file stores the floats of a row: as they are, or smaller. Plain C++17.
//
// A quantized embedding is offset + scale * code, with a code of 8 or 4 bits a value and a scale
// and an offset a row. Scale and offset are multiples of one power of two, chosen so that this is
// exact in float32 for every code: whoever decodes it, in whatever order of operations, gets the
// same bits, and no value is further than scale / 2 from what was encoded. A row whose values are
// all the same has scale 0 and is exact. A row with a value that is not finite, or is 2^125 or more
// in magnitude, has scale and offset NaN.
#ifndef EMBEDPS_KERNELS_FILES_ROW_ENCODING_H_
#define EMBEDPS_KERNELS_FILES_ROW_ENCODING_H_

#include <cstdint>
#include <string>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

enum class RowEncoding { kFloat32, kInt8, kInt4 };
enum class SlotEncoding { kFloat32, kBfloat16 };

// "float32", "int8" or "int4"; "float32" or "bfloat16".
const char* Name(RowEncoding encoding);
const char* Name(SlotEncoding encoding);
Status Parse(const std::string& name, RowEncoding* encoding);
Status Parse(const std::string& name, SlotEncoding* encoding);

// The bytes that the codes of a quantized embedding take.
int CodeBytes(RowEncoding encoding, int dim);

// Of one row. With int4 the lower four bits of a byte are the value that comes first.
void EncodeRow(RowEncoding encoding, const float* values, int dim, uint8_t* codes, float* scale,
               float* offset);
void DecodeRow(RowEncoding encoding, const uint8_t* codes, float scale, float offset, int dim,
               float* values);

// The upper half of a float, rounded to nearest even; NaN stays NaN.
uint16_t ToBfloat16(float value);
float FromBfloat16(uint16_t bits);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_ENCODING_H_
