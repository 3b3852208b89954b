// Counts what a PredictRequest's bytes hold, before protobuf makes objects of them.
#ifndef EMBEDPS_KERNELS_REQUESTS_REQUEST_PARTS_H_
#define EMBEDPS_KERNELS_REQUESTS_REQUEST_PARTS_H_

#include <cstdint>

namespace embedps {

struct RequestParts {
  int64_t objects;     // messages, and texts that are no values
  int64_t texts;       // of string_val
  int64_t numbers;     // of all lists of numbers; tensor_content is none
  int64_t name_bytes;  // of inputs' names, their whole shapes, the model_spec and the filter
};

// Counts. Returns false if the bytes are malformed or have a group, which no client sends.
bool CountParts(const char* data, int64_t size, RequestParts* parts);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_REQUESTS_REQUEST_PARTS_H_
