// Readers of single Parquet columns, row group by row group, as the two types a model takes:
// float32 and int64. Plain C++17 to include; built against Parquet. They throw: ColumnError for a
// column that cannot be read as asked, DataError and parquet::ParquetException for bad content.
#ifndef EMBEDPS_KERNELS_INPUT_PARQUET_COLUMNS_H_
#define EMBEDPS_KERNELS_INPUT_PARQUET_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace parquet {
class RowGroupReader;
class SchemaDescriptor;
}  // namespace parquet

namespace embedps {

// The caller asked for what the file's schema does not have.
class ColumnError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file holds a value that may not be there, or fewer values than it says.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A column of numbers, one a row. T is float or int64_t.
template <typename T>
class FlatColumn {
 public:
  virtual ~FlatColumn() = default;
  virtual const std::string& name() const = 0;
  // Before the first Skip or Read of each row group; `first_row` is the group's first in the file.
  virtual void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) = 0;
  virtual void Skip(int64_t rows) = 0;
  // Writes `rows` values.
  virtual void Read(int64_t rows, T* values) = 0;
};

// A column of lists of integers, any number a row. A null list is empty.
class ListColumn {
 public:
  virtual ~ListColumn() = default;
  virtual const std::string& name() const = 0;
  virtual void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) = 0;
  virtual void Skip(int64_t rows) = 0;
  // Appends the values of `rows` lists and, for each, where it ends in `values`, which must not
  // grow past `max_values`: a DataError.
  virtual void Read(int64_t rows, size_t max_values, std::vector<int64_t>* values,
                    std::vector<int64_t>* ends) = 0;
};

// A row's number in its file, as errors tell it.
std::string AtRow(int64_t row);

// What a null becomes: the given value or, if nulls are not allowed, a DataError.
template <typename T>
struct OnNull {
  bool allowed = true;
  T value = {};
};

// Opens a top-level column of any integer, floating-point or boolean type. uint64 keeps its bits.
// As int64, floating-point values must be integral, and NaN counts as null; as float it stays NaN.
template <typename T>
std::unique_ptr<FlatColumn<T>> OpenFlatColumn(const parquet::SchemaDescriptor& schema,
                                              const std::string& name, OnNull<T> on_null);

// Opens a top-level list column of any integer type; `missing` replaces null elements.
std::unique_ptr<ListColumn> OpenListColumn(const parquet::SchemaDescriptor& schema,
                                           const std::string& name, int64_t missing);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_INPUT_PARQUET_COLUMNS_H_
