// Reads any Parquet file: it returns the rows or a status that says what is wrong.
#include <cstdint>
#include <memory>
#include <string>

#include "embedps/kernels/input/unit_reader.h"
#include "embedps/kernels/testing/fuzzing.h"

namespace embedps {
namespace {

constexpr int64_t kMaxBatches = 1024;  // a file of a few kilobytes may claim any number

void FuzzParquet(const std::string& path) {
  UnitReaderOptions options;
  options.path = path;
  options.batch_rows = 64;
  options.label_column = "label";
  options.float_columns = {"float", "double", "small", "flag"};
  options.id_columns = {"id", "unsigned"};
  options.list_columns = {"list", "short_list"};
  std::unique_ptr<UnitReader> reader;
  if (!UnitReader::Open(options, &reader).ok()) return;
  UnitBatch batch;
  for (int64_t i = 0; i < kMaxBatches; ++i) {
    if (!reader->Next(&batch).ok() || batch.num_rows == 0) return;
    bool whole = static_cast<int64_t>(batch.labels.size()) == batch.num_rows;
    for (const auto& ids : batch.ids) {
      whole &= static_cast<int64_t>(ids.size()) == batch.num_rows;
    }
    for (const IdList& list : batch.lists) {
      whole &= static_cast<int64_t>(list.row_splits.size()) == batch.num_rows + 1;
      whole &= list.row_splits.back() == static_cast<int64_t>(list.values.size());
    }
    if (!whole) std::abort();
  }
}

}  // namespace
}  // namespace embedps

EMBEDPS_FUZZ_MAIN("parquet", embedps::FuzzParquet)
