// Reads a unit's columns together, into blocks of rows, and copies rows of blocks to batches. Plain
// C++17 to include; built against Parquet.
#ifndef EMBEDPS_KERNELS_INPUT_UNIT_COLUMNS_H_
#define EMBEDPS_KERNELS_INPUT_UNIT_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "embedps/kernels/input/parquet_columns.h"
#include "embedps/kernels/input/unit_reader.h"

namespace embedps {

// Rows as they were read, by column, and the order in which they go to batches. The columns are in
// the order of a UnitBatch's.
struct UnitBlock {
  int64_t num_rows = 0;
  std::vector<std::vector<float>> numerics;
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<int64_t>> integers;
  std::vector<UnitList<int64_t>> id_lists;
  std::vector<UnitList<float>> float_lists;
  std::vector<int64_t> order;
};

// The columns that a reader's options name. Methods throw what parquet_columns.h says.
class UnitColumns {
 public:
  UnitColumns(const parquet::SchemaDescriptor& schema, const UnitReaderOptions& options);

  // Must be called before the first Skip or Append of each row group. `first_row` is the number of
  // the group's first row in the file.
  void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row);

  void Skip(int64_t rows);

  // Empties `block` and makes room for `rows`.
  void Prepare(int64_t rows, UnitBlock* block) const;

  // Appends the next `rows` rows, which are numbered from `first_row` in the file. Throws a
  // DataError for a value that its kind of column must not have.
  void Append(int64_t rows, int64_t first_row, UnitBlock* block);

 private:
  template <typename Body>
  void ForEach(Body body);

  // A column of single numbers, and what its values must be.
  template <typename T>
  struct Checked {
    std::unique_ptr<FlatColumn<T>> column;
    void (*check)(const FlatColumn<T>& column, int64_t limit, const T* values, int64_t count,
                  int64_t first_row);
    int64_t limit = 0;
  };

  std::vector<Checked<float>> numerics_;
  std::vector<Checked<float>> floats_;
  std::vector<Checked<int64_t>> integers_;
  std::vector<std::unique_ptr<ListColumn<int64_t>>> id_lists_;
  std::vector<std::unique_ptr<ListColumn<float>>> float_lists_;
};

// Appends rows [first, first + rows) of the block's order to the batch.
void AppendRows(const UnitBlock& block, int64_t first, int64_t rows, UnitBatch* batch);

// Returns the batch that ends a unit: without rows, in the shape of any other.
UnitBatch EmptyBatch(const UnitReaderOptions& options);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_INPUT_UNIT_COLUMNS_H_
