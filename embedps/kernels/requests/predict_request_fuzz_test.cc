// Reads any bytes as a PredictRequest: it declines them, or copies whole columns.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "embedps/kernels/requests/predict_request.h"
#include "embedps/kernels/testing/fuzzing.h"

namespace embedps {
namespace {

const int64_t kEnds[] = {2, 4, 6, 8};
constexpr int64_t kMaxRows = 1 << 16;
const RequestColumns kColumns = {"I1I2C1C2", kEnds, 2, 4, kMaxRows};

void FuzzRequest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  std::vector<ColumnPlace> places(kColumns.num_columns);
  const int64_t rows = FindColumns(data.data(), data.size(), kColumns, places.data());
  if (rows < 0) return;
  if (rows > kMaxRows) std::abort();
  std::vector<float> floats(rows * kColumns.num_floats);
  std::vector<int64_t> integers(rows * (kColumns.num_columns - kColumns.num_floats));
  CopyColumns(data.data(), kColumns, places.data(), rows, floats.data(), integers.data());
}

}  // namespace
}  // namespace embedps

EMBEDPS_FUZZ_MAIN("grpc", embedps::FuzzRequest)
