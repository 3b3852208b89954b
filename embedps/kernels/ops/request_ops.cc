// The readers of requests and the writer of answers, as C functions.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/requests/json_answer.h"
#include "embedps/kernels/requests/json_request.h"
#include "embedps/kernels/requests/predict_request.h"
#include "embedps/kernels/requests/request_parts.h"

// embedps/serving/server/request_reader.py and the json_ files beside it call these through ctypes,
// which lets other threads of Python run meanwhile.
extern "C" {
__attribute__((visibility("default"))) int64_t
embedps_find_columns(const char* data, int64_t size, const embedps::RequestColumns* columns,
                     embedps::ColumnPlace* places) {
  return embedps::FindColumns(data, size, *columns, places);
}

__attribute__((visibility("default"))) void embedps_copy_columns(
    const char* data, const embedps::RequestColumns* columns, const embedps::ColumnPlace* places,
    int64_t rows, float* floats, int64_t* integers) {
  embedps::CopyColumns(data, *columns, places, rows, floats, integers);
}

__attribute__((visibility("default"))) bool embedps_count_parts(const char* data, int64_t size,
                                                                embedps::RequestParts* parts) {
  return embedps::CountParts(data, size, parts);
}

__attribute__((visibility("default"))) void embedps_check_body(const char* data, int64_t size,
                                                               embedps::JsonBody* body) {
  embedps::CheckBody(data, size, body);
}

// Returns the columns, which embedps_free_columns frees, or null.
__attribute__((visibility("default"))) std::vector<embedps::JsonValues>* embedps_read_columns(
    const char* data, const embedps::JsonPlace* place, bool by_row, const embedps::JsonForm* form,
    embedps::JsonError* error) {
  auto values = std::make_unique<std::vector<embedps::JsonValues>>();
  *error = embedps::ReadColumns(data, *place, by_row, *form, values.get());
  return error->fault == embedps::kNoFault ? values.release() : nullptr;
}

// Gives per column whether it is there, how many values it has, and the texts' bytes.
__attribute__((visibility("default"))) void embedps_column_sizes(
    const std::vector<embedps::JsonValues>* values, int64_t* sizes) {
  for (const embedps::JsonValues& each : *values) {
    *sizes++ = each.is_there;
    *sizes++ = each.size();
    *sizes++ = static_cast<int64_t>(each.bytes.size());
  }
}

// Copies a column's values, or the ends of its texts, and these.
__attribute__((visibility("default"))) void embedps_copy_values(
    const std::vector<embedps::JsonValues>* values, int64_t column, void* to, char* bytes) {
  const embedps::JsonValues& from = (*values)[column];
  std::copy(from.integers.begin(), from.integers.end(), static_cast<int64_t*>(to));
  std::copy(from.floats.begin(), from.floats.end(), static_cast<float*>(to));
  std::copy(from.doubles.begin(), from.doubles.end(), static_cast<double*>(to));
  std::copy(from.bytes_end.begin(), from.bytes_end.end(), static_cast<int64_t*>(to));
  std::copy(from.bytes.begin(), from.bytes.end(), bytes);
}

__attribute__((visibility("default"))) void embedps_free_columns(
    std::vector<embedps::JsonValues>* values) {
  delete values;
}

// Returns a text, which embedps_free_text frees, and its size.
__attribute__((visibility("default"))) std::string* embedps_write_rows(
    const embedps::JsonOutput* outputs, int64_t num_outputs, int64_t rows, bool as_objects,
    int64_t* size) {
  auto text =
      std::make_unique<std::string>(embedps::WriteRows(outputs, num_outputs, rows, as_objects));
  *size = static_cast<int64_t>(text->size());
  return text.release();
}

__attribute__((visibility("default"))) const char* embedps_text_data(const std::string* text) {
  return text->data();
}

__attribute__((visibility("default"))) void embedps_free_text(std::string* text) { delete text; }
}
