// Reads any bytes as a REST body: it gives columns of the values that are there, or says where
// they are wrong.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "embedps/kernels/requests/json_request.h"
#include "embedps/kernels/requests/request_parts.h"
#include "embedps/kernels/testing/fuzzing.h"

namespace embedps {
namespace {

constexpr char kNames[] = "IFDTLL_lengths";
constexpr JsonColumn kColumns[] = {
    {1, kJsonInt64, 1, -1, -1, 9}, {2, kJsonFloat32, 0, 0, -1, 9}, {3, kJsonFloat64, 0, 0, -1, 9},
    {4, kJsonBytes, 1, 0, -1, 9},  {5, kJsonInt64, 1, -1, 5, 9},   {14, kJsonInt64, 0, 0, -1, 9},
};

void Expect(bool holds) {
  if (!holds) std::abort();
}

// The values of a column fit each other.
void Check(const JsonValues& values, const JsonColumn& column, int64_t body_size) {
  Expect(values.size() <= column.max_values);
  Expect(static_cast<int64_t>(values.bytes.size()) <= body_size);
  int64_t last = 0;
  for (const int64_t each : values.bytes_end) {
    const int64_t end = each < 0 ? -1 - each : each;
    Expect(end >= last && end <= static_cast<int64_t>(values.bytes.size()));
    last = end;
  }
  Expect(last == static_cast<int64_t>(values.bytes.size()));
}

void FuzzBody(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};  // an overrun is seen
  const int64_t size = static_cast<int64_t>(data.size());
  RequestParts parts;
  CountParts(data.data(), size, &parts);
  JsonBody body;
  CheckBody(data.data(), size, &body);
  Expect(body.wrong_at <= size);
  if (body.wrong_at >= 0) return;
  const JsonForm forms[] = {{kNames, kColumns, 6, 9}, {kNames, kColumns, 1, 9}};
  for (const JsonForm& form : forms) {
    for (const bool by_row : {true, false}) {
      const JsonPlace place = by_row ? body.instances : body.inputs;
      if (place.begin < 0) continue;
      std::vector<JsonValues> values;
      const JsonError error = ReadColumns(data.data(), place, by_row, form, &values);
      Expect(error.place.end <= size && error.place.begin <= error.place.end);
      if (error.fault != kNoFault) continue;
      for (int64_t i = 0; i < form.num_columns; ++i) Check(values[i], form.columns[i], size);
    }
  }
}

}  // namespace
}  // namespace embedps

EMBEDPS_FUZZ_MAIN("json_request", embedps::FuzzBody)
