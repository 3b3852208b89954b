// The reader of usual Predict requests, as C functions.
#include "embedps/kernels/requests/predict_request.h"
#include "embedps/kernels/requests/request_parts.h"

// embedps/serving/server/request_reader.py calls these through ctypes, which lets other threads of
// Python run meanwhile.
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
}
