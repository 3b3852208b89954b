// Reads TensorFlow Serving's PredictRequest from its bytes into matrices of columns.
//
// It reads what clients send as a rule: each tensor once, of one dimension, as content or as packed
// values. It skips fields that a PredictRequest does not have here. It declines all else, also what
// is malformed; a general parser then reads it or says what is wrong. So what it reads means the
// same to both.
#ifndef EMBEDPS_KERNELS_REQUESTS_PREDICT_REQUEST_H_
#define EMBEDPS_KERNELS_REQUESTS_PREDICT_REQUEST_H_

#include <cstdint>

namespace embedps {

// The tensors that a request must have, by place: first those of floats, then those of integers.
struct RequestColumns {
  const char* names;        // one after another
  const int64_t* name_end;  // of each, in `names`
  int64_t num_floats;       // of float32
  int64_t num_columns;      // the others are of int64
  int64_t max_rows;
};

// Where a tensor's values are.
struct ColumnPlace {
  int64_t offset;  // in the request
  int64_t num_bytes;
  int64_t rows;
  int64_t is_packed;  // variable-length integers
};

// Finds the tensors of a request, `places` [num_columns]. Returns its rows, or -1 if it declines.
int64_t FindColumns(const char* data, int64_t size, const RequestColumns& columns,
                    ColumnPlace* places);

// Copies them to `floats` [num_floats, rows] and `integers` [the others, rows]; the only row of a
// tensor counts for all rows.
void CopyColumns(const char* data, const RequestColumns& columns, const ColumnPlace* places,
                 int64_t rows, float* floats, int64_t* integers);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_REQUESTS_PREDICT_REQUEST_H_
