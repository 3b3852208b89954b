// Reads a unit, which is a row range of a Parquet file, as batches for training steps. Its own
// thread reads and shuffles ahead. Plain C++17 to include; built against Parquet.
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
  int64_t num_rows = -1;                     // -1: all rows from first_row on
  int64_t batch_rows = 0;                    // the last batch may be shorter
  int64_t shuffle_rows = 0;                  // rows are shuffled within blocks of this many; 0: not
  uint64_t seed = 0;                         // of the shuffles, which are the same on every machine
  int64_t missing_id = -1;                   // replaces a null id
  int prefetch_batches = 4;                  // finished batches to keep ready
  std::vector<std::string> numeric_columns;  // any finite number; NaN and null become NaN
  std::vector<std::string> label_columns;    // values 0 or 1
  std::vector<std::string> weight_columns;   // finite, at least 0
  std::vector<std::string> float_columns;    // any finite number
  std::vector<std::string> id_columns;       // one integer per row
  std::vector<std::string> integer_columns;  // one integer per row, no nulls
  std::vector<int64_t> integer_limits;       // per integer column: 0 <= value < limit; 0: any
  std::vector<std::string> id_list_columns;  // a list of integers per row
  std::vector<std::string> float_list_columns;  // a list of finite numbers per row; null is NaN
};

template <typename T>
struct UnitList {
  std::vector<T> values;
  std::vector<int64_t> row_splits;  // num_rows + 1
};

struct UnitBatch {
  int64_t num_rows = 0;                        // 0: the unit has ended
  std::vector<float> numerics;                 // num_rows x numeric_columns, row-major
  std::vector<std::vector<float>> floats;      // num_rows each: labels, weights, float columns
  std::vector<std::vector<int64_t>> integers;  // num_rows each: ids, integer columns
  std::vector<UnitList<int64_t>> id_lists;     // one per id list column
  std::vector<UnitList<float>> float_lists;    // one per float list column
};

// Uses memory for shuffle_rows rows (at least 8192), prefetch_batches batches, and one page per
// column.
class UnitReader {
 public:
  virtual ~UnitReader() = default;  // stops the thread

  // Returns NotFound for an absent file; DataLoss for a file that is not Parquet or not a regular
  // file; InvalidArgument for a column that is absent or has another type, or for rows past the
  // end.
  static Status Open(const UnitReaderOptions& options, std::unique_ptr<UnitReader>* reader);

  // Waits for the next batch. Returns DataLoss for content that cannot be read, on every later call
  // too.
  virtual Status Next(UnitBatch* batch) = 0;

  // Counts the open readers of this process.
  static int64_t num_live();
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_INPUT_UNIT_READER_H_
