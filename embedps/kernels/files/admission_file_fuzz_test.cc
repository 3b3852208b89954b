// Reads any file as an admission file: it returns the records or a status that says what is wrong.
#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "embedps/kernels/files/admission_file.h"
#include "embedps/kernels/testing/fuzzing.h"

namespace embedps {
namespace {

void FuzzAdmissionFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  const uint64_t checksum = XXH3_64bits(data.data(), data.size());
  volatile uint64_t sum = 0;
  const Status read = ReadAdmissionFile(
      path, {static_cast<int64_t>(data.size()), checksum},
      [&sum](const CounterColumns& columns, const std::vector<std::string>& tables) {
        const auto records = static_cast<size_t>(columns.num_records);
        bool whole = columns.table.size() == records && columns.id.size() == records;
        whole &= columns.count.size() == records && columns.last_step.size() == records;
        if (!whole || columns.removed.size() != records) std::abort();
        // Reads every value, so a sanitizer sees an access outside of a buffer.
        for (size_t i = 0; i < records; ++i) {
          const auto table = static_cast<size_t>(columns.table[i]);
          if (table >= tables.size()) std::abort();
          sum = sum + tables[table].size() + static_cast<uint64_t>(columns.id[i]) +
                columns.count[i] + columns.last_step[i] + columns.removed[i];
        }
      });
  (void)read;  // either is right
}

}  // namespace
}  // namespace embedps

EMBEDPS_FUZZ_MAIN("admission", embedps::FuzzAdmissionFile)
