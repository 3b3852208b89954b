// Reads any file as a row file: it returns the records or a status that says what is wrong.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/testing/fuzzing.h"

namespace embedps {
namespace {

// Reads every value, so a sanitizer sees an access outside of a buffer.
uint64_t Sum(const RowColumns& columns) {
  uint64_t sum = 0;
  const auto add = [&sum](const auto& values) {
    for (const auto value : values) sum += value != 0;
  };
  add(columns.table);
  add(columns.id);
  add(columns.embedding);
  for (const auto& slot : columns.optimizer_slots) add(slot);
  add(columns.last_step);
  add(columns.frequency);
  add(columns.removed);
  return sum;
}

void FuzzRowFile(const std::string& path) {
  std::unique_ptr<RowFileReader> reader;
  if (!RowFileReader::Open(path, std::nullopt, &reader).ok()) return;
  RowColumns columns;
  volatile uint64_t sum = 0;
  for (int i = 0; i < reader->num_batches(); ++i) {
    if (!reader->Read(i, &columns).ok()) return;
    if (static_cast<int64_t>(columns.embedding.size()) != columns.num_rows * reader->schema().dim) {
      std::abort();
    }
    sum = sum + Sum(columns);
  }
}

}  // namespace
}  // namespace embedps

EMBEDPS_FUZZ_MAIN("row_file", embedps::FuzzRowFile)
