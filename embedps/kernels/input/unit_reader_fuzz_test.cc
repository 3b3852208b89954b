// Reads any Parquet file: it returns the rows or a status that says what is wrong.
#include <cstdint>
#include <memory>
#include <string>

#include "embedps/kernels/input/unit_reader.h"
#include "embedps/kernels/testing/fuzzing.h"

namespace embedps {
namespace {

constexpr int64_t kMaxBatches = 1024;  // a file of a few kilobytes may claim any number

// Reads all batches and checks that each is whole.
void ReadAll(const UnitReaderOptions& options) {
  std::unique_ptr<UnitReader> reader;
  if (!UnitReader::Open(options, &reader).ok()) return;
  UnitBatch batch;
  for (int64_t i = 0; i < kMaxBatches; ++i) {
    if (!reader->Next(&batch).ok() || batch.num_rows == 0) return;
    bool whole = true;
    const auto check_columns = [&](const auto& columns) {
      for (const auto& values : columns) {
        whole &= static_cast<int64_t>(values.size()) == batch.num_rows;
      }
    };
    const auto check_lists = [&](const auto& columns) {
      for (const auto& list : columns) {
        whole &= static_cast<int64_t>(list.row_splits.size()) == batch.num_rows + 1;
        whole &= list.row_splits.back() == static_cast<int64_t>(list.values.size());
      }
    };
    check_columns(batch.floats);
    check_columns(batch.integers);
    check_lists(batch.id_lists);
    check_lists(batch.float_lists);
    if (!whole) std::abort();
  }
}

void FuzzParquet(const std::string& path) {
  UnitReaderOptions options;
  options.path = path;
  options.batch_rows = 64;
  options.numeric_columns = {"float", "double", "small", "flag"};
  options.label_columns = {"label"};
  options.id_columns = {"id", "unsigned"};
  options.id_list_columns = {"list", "short_list"};
  ReadAll(options);
  options.numeric_columns = {"one_float"};
  options.label_columns = {"label", "one_flag"};
  options.weight_columns = {"small"};
  options.float_columns = {"double"};
  options.id_columns = {"one_id"};
  options.integer_columns = {"unsigned", "one_class"};
  options.integer_limits = {0, 3};
  options.float_list_columns = {"float_list", "double_list"};
  ReadAll(options);
}

}  // namespace
}  // namespace embedps

EMBEDPS_FUZZ_MAIN("parquet", embedps::FuzzParquet)
