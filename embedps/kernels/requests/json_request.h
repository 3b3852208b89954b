// Reads the body of a REST request, {"instances": [...]} or {"inputs": {...}}, into columns.
//
// A body means what it means to embedps/serving/server/json_bodies.py, which reads small ones and
// says what is wrong with a value of a large one.
#ifndef EMBEDPS_KERNELS_REQUESTS_JSON_REQUEST_H_
#define EMBEDPS_KERNELS_REQUESTS_JSON_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace embedps {

// Where something is in the body.
struct JsonPlace {
  int64_t begin = -1;  // it is not there
  int64_t end = -1;
};

struct JsonBody {
  JsonPlace instances, inputs, signature;
  int64_t num_commas;
  int64_t is_object;
  int64_t wrong_at;  // the place of what is no JSON, or -1
};

// Checks a body, and finds its parts. The last one of a name counts.
void CheckBody(const char* data, int64_t size, JsonBody* body);

enum JsonKind : int64_t { kJsonInt64, kJsonFloat32, kJsonFloat64, kJsonBytes };

struct JsonColumn {
  int64_t name_end;       // in the names
  int64_t kind;           // a JsonKind
  int64_t takes_null;     // of ids and texts; a number may always be null
  int64_t missing;        // what null is, of int64
  int64_t lengths_place;  // by row: of a list's lengths, or -1
  int64_t max_values;
};

struct JsonForm {
  const char* names;  // one after another
  const JsonColumn* columns;
  int64_t num_columns;
  int64_t max_rows;
};

enum JsonFault : int64_t {
  kNoFault,
  kNoList,      // the instances, or a column's values
  kNoObject,    // the inputs, or an instance
  kOtherName,   // the place is that of a name which the form has not
  kOtherNames,  // an instance has not the names of the first
  kTooMany,     // rows, or values of a column
  kValue,       // of a column, at the place
};

struct JsonError {
  int64_t fault = kNoFault;
  int64_t column = -1;
  int64_t count = 0;  // the row, or how many there are
  JsonPlace place;
};

// The values of a column.
struct JsonValues {
  bool is_there = false;
  std::vector<int64_t> integers;
  std::vector<float> floats;
  std::vector<double> doubles;
  std::string bytes;
  std::vector<int64_t> bytes_end;  // of each text in `bytes`; as -1 - end if it is null

  int64_t size() const {
    return integers.size() + floats.size() + doubles.size() + bytes_end.size();
  }
};

// Reads the part at a place of a checked body. Returns an error, or the columns' values.
JsonError ReadColumns(const char* data, const JsonPlace& place, bool by_row, const JsonForm& form,
                      std::vector<JsonValues>* values);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_REQUESTS_JSON_REQUEST_H_
