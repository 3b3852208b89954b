#include "embedps/kernels/input/parquet_columns.h"

#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>
#include <parquet/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace embedps {
namespace {

constexpr int64_t kChunkRows = 4096;
constexpr int kMaxNamesShown = 64;

std::string TopLevelNames(const parquet::SchemaDescriptor& schema) {
  const parquet::schema::GroupNode& root = *schema.group_node();
  std::string names;
  for (int i = 0; i < root.field_count() && i < kMaxNamesShown; ++i) {
    names += (i == 0 ? "'" : ", '") + root.field(i)->name() + "'";
  }
  if (root.field_count() > kMaxNamesShown) {
    names += ", ... (" + std::to_string(root.field_count()) + " in all)";
  }
  return names;
}

// Returns the index of the only leaf under the top-level column `name`.
int FindLeaf(const parquet::SchemaDescriptor& schema, const std::string& name) {
  int leaf = -1;
  for (int i = 0; i < schema.num_columns(); ++i) {
    if (schema.GetColumnRoot(i)->name() != name) continue;
    if (leaf >= 0) {
      throw ColumnError("column '" + name + "' must be a number or a list of numbers but is " +
                        schema.GetColumnRoot(i)->logical_type()->ToString() + " of several fields");
    }
    leaf = i;
  }
  if (leaf < 0) {
    throw ColumnError("there is no column '" + name + "': the file has " + TopLevelNames(schema));
  }
  return leaf;
}

std::string TypeText(const parquet::ColumnDescriptor& column) {
  std::string text = parquet::TypeToString(column.physical_type());
  if (column.logical_type() != nullptr && !column.logical_type()->is_none()) {
    text += " (" + column.logical_type()->ToString() + ")";
  }
  return text;
}

bool IsUnsigned(const parquet::ColumnDescriptor& column) {
  const auto& type = column.logical_type();
  return type != nullptr && type->is_int() &&
         !static_cast<const parquet::IntLogicalType&>(*type).is_signed();
}

// Whether a column holds plain numbers. The stored integers of dates, times and decimals mean
// something else.
bool IsNumber(const parquet::ColumnDescriptor& column) {
  const auto& type = column.logical_type();
  return type == nullptr || type->is_none() || type->is_int();
}

// Whether a stored value means null: a NaN that is read as an id.
template <typename To, typename From>
bool IsNull(From value) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) return std::isnan(value);
  return false;
}

template <typename To, typename From>
To Convert(const std::string& column, From value, int64_t row) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From kLimit = static_cast<From>(9223372036854775808.0);  // 2^63
    if (std::trunc(value) != value || value < -kLimit || value >= kLimit) {
      throw DataError("column '" + column + "' is read as int64: its values must be integral and " +
                      "in [-2^63, 2^63) but one is " + std::to_string(value) + AtRow(row));
    }
  }
  return static_cast<To>(value);
}

// Turns a column's stored values into T. Stored: the type of their bits (unsigned or not).
template <typename Stored, typename T>
class Values {
 public:
  Values(std::string column, NullPolicy<T> nulls) : column_(std::move(column)), nulls_(nulls) {}

  const std::string& column() const { return column_; }

  template <typename Physical>
  T Of(Physical physical, int64_t row) const {
    const Stored value = static_cast<Stored>(physical);
    if (IsNull<T>(value)) return Null(row);
    return Convert<T>(column_, value, row);
  }

  T Null(int64_t row) const {
    if (!nulls_.allowed) {
      throw DataError("column '" + column_ + "' must not have nulls but has one" + AtRow(row));
    }
    return nulls_.value;
  }

 private:
  const std::string column_;
  const NullPolicy<T> nulls_;
};

// DType: the column's Parquet type. Stored, T: as in Values.
template <typename DType, typename Stored, typename T>
class TypedFlatColumn final : public FlatColumn<T> {
 public:
  using Physical = typename DType::c_type;

  TypedFlatColumn(int leaf, const std::string& name, const parquet::ColumnDescriptor& column,
                  NullPolicy<T> nulls)
      : leaf_(leaf), optional_(column.max_definition_level() > 0), values_(name, nulls) {}

  const std::string& name() const override { return values_.column(); }

  void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) override {
    reader_ = std::static_pointer_cast<parquet::TypedColumnReader<DType>>(group->Column(leaf_));
    row_ = first_row;
  }

  void Skip(int64_t rows) override {
    while (rows > 0) {
      const int64_t skipped = reader_->Skip(rows);
      if (skipped <= 0) Ended(rows);
      rows -= skipped;
      row_ += skipped;
    }
  }

  void Read(int64_t rows, T* values) override {
    while (rows > 0) {
      const int64_t read = ReadSome(rows, values);
      if (read <= 0) Ended(rows);
      rows -= read;
      row_ += read;
      values += read;
    }
  }

 private:
  [[noreturn]] void Ended(int64_t rows) const {
    throw DataError("column '" + name() + "' ends " + std::to_string(rows) +
                    " rows before its row group");
  }

  int64_t ReadSome(int64_t rows, T* values) {
    int64_t num_values = 0;
    // Read into place if no value can be null or needs a conversion.
    if constexpr (std::is_same_v<Physical, T> && std::is_same_v<Physical, Stored>) {
      if (!optional_) {
        reader_->ReadBatch(rows, nullptr, nullptr, values, &num_values);
        return num_values;
      }
    }
    const int64_t chunk = std::min(rows, kChunkRows);
    if (stored_ == nullptr) stored_ = std::make_unique<Physical[]>(kChunkRows);
    if (!optional_) {
      reader_->ReadBatch(chunk, nullptr, nullptr, stored_.get(), &num_values);
      for (int64_t i = 0; i < num_values; ++i) values[i] = values_.Of(stored_[i], row_ + i);
      return num_values;
    }
    levels_.resize(kChunkRows);
    const int64_t num_levels =
        reader_->ReadBatch(chunk, levels_.data(), nullptr, stored_.get(), &num_values);
    int64_t next = 0;
    for (int64_t i = 0; i < num_levels; ++i) {
      if (levels_[i] == 0) {
        values[i] = values_.Null(row_ + i);
      } else if (next < num_values) {
        values[i] = values_.Of(stored_[next++], row_ + i);
      } else {
        throw DataError("column '" + name() + "' has fewer values than its levels say");
      }
    }
    return num_levels;
  }

  const int leaf_;
  const bool optional_;
  const Values<Stored, T> values_;
  std::shared_ptr<parquet::TypedColumnReader<DType>> reader_;
  std::unique_ptr<Physical[]> stored_;
  std::vector<int16_t> levels_;
  int64_t row_ = 0;  // number in the file of the next row to read
};

// Returns the least definition level that means an element. Lower ones mean an empty or null list.
int16_t ElementLevel(const parquet::ColumnDescriptor& column) {
  std::vector<const parquet::schema::Node*> path;
  for (const parquet::schema::Node* node = column.schema_node().get(); node->parent() != nullptr;
       node = node->parent()) {
    path.push_back(node);
  }
  int16_t level = 0;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    if (!(*node)->is_required()) ++level;
    if ((*node)->is_repeated()) break;
  }
  return level;
}

// Reads lists element by element. DType, Stored, T: as in TypedFlatColumn.
template <typename DType, typename Stored, typename T>
class ListReader {
 public:
  using Physical = typename DType::c_type;

  ListReader(int leaf, const std::string& name, const parquet::ColumnDescriptor& column,
             NullPolicy<T> nulls)
      : leaf_(leaf),
        element_level_(ElementLevel(column)),
        value_level_(column.max_definition_level()),
        values_(name, nulls),
        definition_levels_(kChunkRows),
        repetition_levels_(kChunkRows),
        stored_(std::make_unique<Physical[]>(kChunkRows)) {}

  const std::string& name() const { return values_.column(); }

  // Returns the number in the file of the list that is read now.
  int64_t row() const { return row_; }

  void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) {
    reader_ = std::static_pointer_cast<parquet::TypedColumnReader<DType>>(group->Column(leaf_));
    next_level_ = num_levels_ = next_value_ = num_values_ = 0;
    row_ = first_row;
  }

  void Skip(int64_t rows) {
    ForEachRow(rows, [](Physical) {}, [] {}, [] {});
  }

  // Gives each element of the next `rows` lists to `on_value`; calls `on_end` after each list.
  template <typename OnValue, typename OnEnd>
  void Read(int64_t rows, OnValue on_value, OnEnd on_end) {
    ForEachRow(
        rows, [&](Physical stored) { on_value(values_.Of(stored, row_)); },
        [&] { on_value(values_.Null(row_)); }, on_end);
  }

 private:
  template <typename OnStored, typename OnNull, typename OnEnd>
  void ForEachRow(int64_t rows, OnStored on_stored, OnNull on_null, OnEnd on_end) {
    for (const int64_t end = row_ + rows; row_ < end; ++row_) {
      if (!FillLevels()) {
        throw DataError("column '" + name() + "' ends " + std::to_string(end - row_) +
                        " rows before its row group");
      }
      if (repetition_levels_[next_level_] != 0) {
        throw DataError("column '" + name() + "' continues a list where a row must begin");
      }
      do {
        const int16_t level = definition_levels_[next_level_++];
        if (level >= value_level_) {
          if (next_value_ >= num_values_) {
            throw DataError("column '" + name() + "' has fewer values than its levels say");
          }
          on_stored(stored_[next_value_++]);
        } else if (level >= element_level_) {
          on_null();
        }
      } while (FillLevels() && repetition_levels_[next_level_] != 0);
      on_end();
    }
  }

  // Reads more levels if all are used up. Returns whether one is left.
  bool FillLevels() {
    while (next_level_ >= num_levels_) {
      if (!reader_->HasNext()) return false;
      next_level_ = next_value_ = 0;
      num_levels_ = reader_->ReadBatch(kChunkRows, definition_levels_.data(),
                                       repetition_levels_.data(), stored_.get(), &num_values_);
      if (num_levels_ <= 0) return false;
    }
    return true;
  }

  const int leaf_;
  const int16_t element_level_;
  const int16_t value_level_;
  const Values<Stored, T> values_;
  std::shared_ptr<parquet::TypedColumnReader<DType>> reader_;
  std::vector<int16_t> definition_levels_;
  std::vector<int16_t> repetition_levels_;
  std::unique_ptr<Physical[]> stored_;
  int64_t next_level_ = 0;
  int64_t num_levels_ = 0;
  int64_t next_value_ = 0;
  int64_t num_values_ = 0;
  int64_t row_ = 0;
};

template <typename DType, typename Stored, typename T>
class TypedListColumn final : public ListColumn<T> {
 public:
  template <typename... Arguments>
  explicit TypedListColumn(const Arguments&... arguments) : lists_(arguments...) {}

  const std::string& name() const override { return lists_.name(); }
  void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) override {
    lists_.StartRowGroup(group, first_row);
  }
  void Skip(int64_t rows) override { lists_.Skip(rows); }

  void Read(int64_t rows, size_t max_values, std::vector<T>* values,
            std::vector<int64_t>* ends) override {
    lists_.Read(
        rows,
        [&](T value) {
          if (values->size() >= max_values) {
            throw DataError("column '" + name() + "' must hold at most " +
                            std::to_string(max_values) + " values in the rows shuffled together");
          }
          values->push_back(value);
        },
        [values, ends] { ends->push_back(static_cast<int64_t>(values->size())); });
  }

 private:
  ListReader<DType, Stored, T> lists_;
};

// A column of lists that have one element each.
template <typename DType, typename Stored, typename T>
class OneElementColumn final : public FlatColumn<T> {
 public:
  template <typename... Arguments>
  explicit OneElementColumn(const Arguments&... arguments) : lists_(arguments...) {}

  const std::string& name() const override { return lists_.name(); }
  void StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) override {
    lists_.StartRowGroup(group, first_row);
  }
  void Skip(int64_t rows) override { lists_.Skip(rows); }

  void Read(int64_t rows, T* values) override {
    int64_t num_elements = 0;
    lists_.Read(
        rows,
        [&](T value) {
          *values = value;
          ++num_elements;
        },
        [&] {
          if (num_elements != 1) {
            throw DataError("column '" + name() +
                            "' is read as one number per row: its lists must have one element " +
                            "but one has " + std::to_string(num_elements) + AtRow(lists_.row()));
          }
          ++values;
          num_elements = 0;
        });
  }

 private:
  ListReader<DType, Stored, T> lists_;
};

template <typename DTypeArgument, typename StoredArgument>
struct StoredAs {
  using DType = DTypeArgument;
  using Stored = StoredArgument;
};

// Calls `make` with the StoredAs of a column of numbers that are read as T. Returns null if the
// column is of another type.
template <typename T, typename Column, typename Make>
std::unique_ptr<Column> MakeForType(const parquet::ColumnDescriptor& column, Make make) {
  if (!IsNumber(column)) return nullptr;
  const bool is_unsigned = IsUnsigned(column);
  switch (column.physical_type()) {
    case parquet::Type::BOOLEAN:
      return make(StoredAs<parquet::BooleanType, bool>());
    case parquet::Type::INT32:
      if (is_unsigned) return make(StoredAs<parquet::Int32Type, uint32_t>());
      return make(StoredAs<parquet::Int32Type, int32_t>());
    case parquet::Type::INT64:
      // An unsigned id keeps its 64 bits: read them as int64.
      if constexpr (std::is_floating_point_v<T>) {
        if (is_unsigned) return make(StoredAs<parquet::Int64Type, uint64_t>());
      }
      return make(StoredAs<parquet::Int64Type, int64_t>());
    case parquet::Type::FLOAT:
      return make(StoredAs<parquet::FloatType, float>());
    case parquet::Type::DOUBLE:
      return make(StoredAs<parquet::DoubleType, double>());
    default:
      return nullptr;
  }
}

}  // namespace

std::string AtRow(int64_t row) {
  return " at row " + std::to_string(row) + " of the file, counted from 0";
}

template <typename T>
std::unique_ptr<FlatColumn<T>> OpenFlatColumn(const parquet::SchemaDescriptor& schema,
                                              const std::string& name, NullPolicy<T> nulls) {
  const int leaf = FindLeaf(schema, name);
  const parquet::ColumnDescriptor& column = *schema.Column(leaf);
  const bool is_top_level = column.path()->ToDotVector().size() == 1;
  const bool is_list = column.max_repetition_level() == 1;
  if (is_list || (is_top_level && column.max_repetition_level() == 0)) {
    auto opened = MakeForType<T, FlatColumn<T>>(
        column, [&](auto stored_as) -> std::unique_ptr<FlatColumn<T>> {
          using DType = typename decltype(stored_as)::DType;
          using Stored = typename decltype(stored_as)::Stored;
          if (is_list) {
            return std::make_unique<OneElementColumn<DType, Stored, T>>(leaf, name, column, nulls);
          }
          return std::make_unique<TypedFlatColumn<DType, Stored, T>>(leaf, name, column, nulls);
        });
    if (opened != nullptr) return opened;
  }
  throw ColumnError("column '" + name + "' must be one number a row but is " +
                    (is_top_level ? TypeText(column) : "a list or struct of " + TypeText(column)));
}

template std::unique_ptr<FlatColumn<float>> OpenFlatColumn(const parquet::SchemaDescriptor&,
                                                           const std::string&, NullPolicy<float>);
template std::unique_ptr<FlatColumn<int64_t>> OpenFlatColumn(const parquet::SchemaDescriptor&,
                                                             const std::string&,
                                                             NullPolicy<int64_t>);

template <typename T>
std::unique_ptr<ListColumn<T>> OpenListColumn(const parquet::SchemaDescriptor& schema,
                                              const std::string& name, NullPolicy<T> nulls) {
  const int leaf = FindLeaf(schema, name);
  const parquet::ColumnDescriptor& column = *schema.Column(leaf);
  const parquet::Type::type type = column.physical_type();
  const bool is_integer = type == parquet::Type::INT32 || type == parquet::Type::INT64;
  const bool is_real = type == parquet::Type::FLOAT || type == parquet::Type::DOUBLE;
  if (column.max_repetition_level() == 1 &&
      (is_integer || (is_real && std::is_floating_point_v<T>))) {
    auto opened = MakeForType<T, ListColumn<T>>(
        column, [&](auto stored_as) -> std::unique_ptr<ListColumn<T>> {
          using DType = typename decltype(stored_as)::DType;
          using Stored = typename decltype(stored_as)::Stored;
          return std::make_unique<TypedListColumn<DType, Stored, T>>(leaf, name, column, nulls);
        });
    if (opened != nullptr) return opened;
  }
  throw ColumnError("column '" + name + "' must be a list of " +
                    (std::is_floating_point_v<T> ? "numbers" : "integers") + " but is " +
                    (column.max_repetition_level() == 0 ? "" : "a list of ") + TypeText(column));
}

template std::unique_ptr<ListColumn<float>> OpenListColumn(const parquet::SchemaDescriptor&,
                                                           const std::string&, NullPolicy<float>);
template std::unique_ptr<ListColumn<int64_t>> OpenListColumn(const parquet::SchemaDescriptor&,
                                                             const std::string&,
                                                             NullPolicy<int64_t>);

}  // namespace embedps
