// Reads a unit, a Parquet file's range of rows, as batches for a training step. A thread of its own
// reads and shuffles ahead. Plain C++17 to include; built against Parquet.
#ifndef EMBEDPS_KERNELS_INPUT_UNIT_READER_H_
#define EMBEDPS_KERNELS_INPUT_UNIT_READER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

struct UnitReaderOptions {
  std::string path;
  int64_t first_row = 0;
  int64_t num_rows = -1;                   // -1: all from first_row
  int64_t batch_rows = 0;                  // the last batch may be shorter
  int64_t shuffle_rows = 0;                // rows are permuted within runs of so many; 0: not
  uint64_t seed = 0;                       // of the permutations: the same on every machine
  int64_t missing_id = -1;                 // what a null id becomes
  int prefetch_batches = 4;                // finished batches held ready
  std::string label_column;                // 0 or 1; empty: none
  std::vector<std::string> float_columns;  // any finite number, NaN and null are NaN
  std::vector<std::string> id_columns;     // one integer a row
  std::vector<std::string> list_columns;   // a list of integers a row
};

struct IdList {
  std::vector<int64_t> values;
  std::vector<int64_t> row_splits;  // num_rows + 1
};

struct UnitBatch {
  int64_t num_rows = 0;                   // 0: the unit is at its end
  std::vector<float> labels;              // num_rows, or none
  std::vector<float> floats;              // num_rows x float_columns, row-major
  std::vector<std::vector<int64_t>> ids;  // num_rows for each of id_columns
  std::vector<IdList> lists;              // one for each of list_columns
};

// Memory: shuffle_rows (at least 8192) rows, prefetch_batches batches, and a page of each column.
class UnitReader {
 public:
  virtual ~UnitReader() = default;  // stops the thread

  // Fails at once for an absent file (NotFound), one that is not Parquet or no regular file
  // (DataLoss), a column that is not there or of a type that does not fit, or rows past its end
  // (InvalidArgument).
  static Status Open(const UnitReaderOptions& options, std::unique_ptr<UnitReader>* reader);

  // The next batch; waits for it. DataLoss for content that cannot be read, again at every call.
  virtual Status Next(UnitBatch* batch) = 0;

  // Readers of this process that are open.
  static int64_t num_live();
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_INPUT_UNIT_READER_H_
