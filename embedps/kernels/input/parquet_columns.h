// Reads single Parquet columns, row group by row group, as float32 or int64: the types that models
// take. Plain C++17 to include; built against Parquet. The readers throw ColumnError for a column
// that cannot be read as asked, and DataError or parquet::ParquetException for bad content.
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

// The file's schema does not have what the caller asks for.
class ColumnError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The file holds an invalid value, or fewer values than it declares.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A column with one number per row. T is float or int64_t.
template <typename T>
class FlatColumn {
 public:
  virtual ~FlatColumn() = default;
  virtual const std::string& name() const = 0;
  // Must be called before the first Skip or Read of each row group. `first_row` is the number of
  // the group's first row in the file.
  virtual void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) = 0;
  virtual void Skip(int64_t rows) = 0;
  // Writes the next `rows` values.
  virtual void Read(int64_t rows, T* values) = 0;
};

// A column with a list of any number of values per row. A null list is empty. T is float or
// int64_t.
template <typename T>
class ListColumn {
 public:
  virtual ~ListColumn() = default;
  virtual const std::string& name() const = 0;
  virtual void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) = 0;
  virtual void Skip(int64_t rows) = 0;
  // Appends the values of the next `rows` lists, and to `ends` where each list ends in `values`.
  // Throws a DataError if `values` would grow past `max_values`.
  virtual void Read(int64_t rows, size_t max_values, std::vector<T>* values,
                    std::vector<int64_t>* ends) = 0;
};

// Returns " at row N of the file, ...", for messages.
std::string AtRow(int64_t row);

// How to read nulls: as `value`, or as a DataError if they are not allowed.
template <typename T>
struct NullPolicy {
  bool allowed = true;
  T value = {};
};

// Opens a top-level column of any integer, floating-point or boolean type, or of lists of these; a
// list must have exactly one element, which a Read checks. uint64 keeps its bits. If T is int64_t,
// floating-point values must be integral and NaN counts as null. If T is float, NaN stays NaN.
template <typename T>
std::unique_ptr<FlatColumn<T>> OpenFlatColumn(const parquet::SchemaDescriptor& schema,
                                              const std::string& name, NullPolicy<T> nulls);

// Opens a top-level list column. If T is int64_t, the elements are of any integer type. If T is
// float, they are of any integer or floating-point type. `nulls` is about null elements.
template <typename T>
std::unique_ptr<ListColumn<T>> OpenListColumn(const parquet::SchemaDescriptor& schema,
                                              const std::string& name, NullPolicy<T> nulls);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_INPUT_PARQUET_COLUMNS_H_
