// Writes the JSON of answers as Python's `json` does.
#ifndef EMBEDPS_KERNELS_REQUESTS_JSON_ANSWER_H_
#define EMBEDPS_KERNELS_REQUESTS_JSON_ANSWER_H_

#include <cstdint>
#include <string>

namespace embedps {

enum JsonOutputKind : int64_t { kOutInt64, kOutFloat32, kOutFloat64, kOutBool, kOutJson };

struct JsonOutput {
  const char* name;   // as JSON
  int64_t kind;       // a JsonOutputKind
  const void* data;   // [rows] or [rows, width]; of kOutJson, a JSON list of all values
  int64_t data_size;  // of kOutJson, in bytes
  int64_t width;      // of a row; -1 if it is one value
};

// Writes rows with ", " between them: objects of all outputs, or the values of the only one.
std::string WriteRows(const JsonOutput* outputs, int64_t num_outputs, int64_t rows,
                      bool as_objects);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_REQUESTS_JSON_ANSWER_H_
