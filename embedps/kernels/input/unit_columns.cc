#include "embedps/kernels/input/unit_columns.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

namespace embedps {
namespace {

// The most values of a list column in a block. Run-length encoding makes huge lists cheap for a
// file.
constexpr size_t kMaxListValues = size_t{1} << 27;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Throws a DataError for the first value that is not good. Row `row_of(i)` of the file has value i.
template <typename T, typename IsGood, typename RowOf>
void CheckValues(const std::string& column, const std::string& what, IsGood is_good,
                 const T* values, int64_t count, RowOf row_of) {
  // No branch per value, so the compiler vectorizes the loop.
  int32_t num_bad = 0;
  for (int64_t i = 0; i < count; ++i) num_bad |= !is_good(values[i]);
  if (num_bad == 0) return;
  for (int64_t i = 0; i < count; ++i) {
    if (is_good(values[i])) continue;
    std::ostringstream found;
    if (values[i] != values[i]) {
      found << "NaN";
    } else {
      found << values[i];
    }
    throw DataError("column '" + column + "' must be " + what + " but is " + found.str() +
                    AtRow(row_of(i)));
  }
}

constexpr auto kIsBinary = [](float value) { return (value == 0.0f) | (value == 1.0f); };
constexpr auto kIsWeight = [](float value) { return (value >= 0.0f) & (value < kInfinity); };
constexpr auto kIsFinite = [](float value) { return std::abs(value) < kInfinity; };
constexpr auto kIsNumeric = [](float value) { return std::abs(value) != kInfinity; };
constexpr char kNumeric[] = "finite in float32, or NaN where it is missing,";

template <typename IsGood>
void CheckFloats(const FlatColumn<float>& column, const char* what, IsGood is_good,
                 const float* values, int64_t count, int64_t first_row) {
  CheckValues(column.name(), what, is_good, values, count,
              [first_row](int64_t i) { return first_row + i; });
}

void CheckBinary(const FlatColumn<float>& column, int64_t, const float* values, int64_t count,
                 int64_t first_row) {
  CheckFloats(column, "0 or 1", kIsBinary, values, count, first_row);
}

void CheckWeight(const FlatColumn<float>& column, int64_t, const float* values, int64_t count,
                 int64_t first_row) {
  CheckFloats(column, "finite in float32 and at least 0", kIsWeight, values, count, first_row);
}

void CheckFinite(const FlatColumn<float>& column, int64_t, const float* values, int64_t count,
                 int64_t first_row) {
  CheckFloats(column, "finite in float32", kIsFinite, values, count, first_row);
}

void CheckNumeric(const FlatColumn<float>& column, int64_t, const float* values, int64_t count,
                  int64_t first_row) {
  CheckFloats(column, kNumeric, kIsNumeric, values, count, first_row);
}

void CheckLimit(const FlatColumn<int64_t>& column, int64_t limit, const int64_t* values,
                int64_t count, int64_t first_row) {
  if (limit == 0) return;
  CheckValues(
      column.name(), "in [0, " + std::to_string(limit) + ")",
      [limit](int64_t value) { return (value >= 0) & (value < limit); }, values, count,
      [first_row](int64_t i) { return first_row + i; });
}

// Appends rows of a column, in a given order.
template <typename T>
void AppendColumns(const std::vector<std::vector<T>>& from, const int64_t* order, int64_t at,
                   int64_t rows, std::vector<std::vector<T>>* to) {
  to->resize(from.size());
  for (size_t c = 0; c < from.size(); ++c) {
    (*to)[c].resize(at + rows);
    const T* column = from[c].data();
    T* out = (*to)[c].data() + at;
    for (int64_t i = 0; i < rows; ++i) out[i] = column[order[i]];
  }
}

template <typename T>
void AppendLists(const std::vector<UnitList<T>>& from, const int64_t* order, int64_t rows,
                 std::vector<UnitList<T>>* to) {
  to->resize(from.size());
  for (size_t c = 0; c < from.size(); ++c) {
    const UnitList<T>& lists = from[c];
    UnitList<T>& out = (*to)[c];
    if (out.row_splits.empty()) out.row_splits.push_back(0);
    for (int64_t i = 0; i < rows; ++i) {
      out.values.insert(out.values.end(), lists.values.begin() + lists.row_splits[order[i]],
                        lists.values.begin() + lists.row_splits[order[i] + 1]);
      out.row_splits.push_back(static_cast<int64_t>(out.values.size()));
    }
  }
}

template <typename T>
void Clear(size_t num_columns, std::vector<UnitList<T>>* lists) {
  lists->resize(num_columns);
  for (UnitList<T>& list : *lists) {
    list.values.clear();
    list.row_splits.assign(1, 0);
  }
}

}  // namespace

UnitColumns::UnitColumns(const parquet::SchemaDescriptor& schema,
                         const UnitReaderOptions& options) {
  const NullPolicy<float> nan = {true, std::numeric_limits<float>::quiet_NaN()};
  const NullPolicy<int64_t> missing = {true, options.missing_id};
  const auto no_check = [](const FlatColumn<int64_t>&, int64_t, const int64_t*, int64_t, int64_t) {
  };
  for (const std::string& name : options.numeric_columns) {
    numerics_.push_back({OpenFlatColumn<float>(schema, name, nan), CheckNumeric});
  }
  for (const auto& [names, check] : {std::pair{&options.label_columns, &CheckBinary},
                                     std::pair{&options.weight_columns, &CheckWeight},
                                     std::pair{&options.float_columns, &CheckFinite}}) {
    for (const std::string& name : *names) {
      floats_.push_back({OpenFlatColumn<float>(schema, name, {/*allowed=*/false, 0}), check});
    }
  }
  for (const std::string& name : options.id_columns) {
    integers_.push_back({OpenFlatColumn<int64_t>(schema, name, missing), no_check});
  }
  for (size_t c = 0; c < options.integer_columns.size(); ++c) {
    integers_.push_back(
        {OpenFlatColumn<int64_t>(schema, options.integer_columns[c], {/*allowed=*/false, 0}),
         CheckLimit, options.integer_limits[c]});
  }
  for (const std::string& name : options.id_list_columns) {
    id_lists_.push_back(OpenListColumn<int64_t>(schema, name, missing));
  }
  for (const std::string& name : options.float_list_columns) {
    float_lists_.push_back(OpenListColumn<float>(schema, name, nan));
  }
}

template <typename Body>
void UnitColumns::ForEach(Body body) {
  for (auto& each : numerics_) body(*each.column);
  for (auto& each : floats_) body(*each.column);
  for (auto& each : integers_) body(*each.column);
  for (auto& column : id_lists_) body(*column);
  for (auto& column : float_lists_) body(*column);
}

void UnitColumns::StartRowGroup(parquet::RowGroupReader* group, int64_t first_row) {
  ForEach([&](auto& column) { column.StartRowGroup(group, first_row); });
}

void UnitColumns::Skip(int64_t rows) {
  ForEach([rows](auto& column) { column.Skip(rows); });
}

void UnitColumns::Prepare(int64_t rows, UnitBlock* block) const {
  block->num_rows = 0;
  block->numerics.resize(numerics_.size());
  block->floats.resize(floats_.size());
  block->integers.resize(integers_.size());
  for (auto& values : block->numerics) values.resize(rows);
  for (auto& values : block->floats) values.resize(rows);
  for (auto& values : block->integers) values.resize(rows);
  Clear(id_lists_.size(), &block->id_lists);
  Clear(float_lists_.size(), &block->float_lists);
}

void UnitColumns::Append(int64_t rows, int64_t first_row, UnitBlock* block) {
  const auto append = [&](auto& columns, auto& values) {
    for (size_t c = 0; c < columns.size(); ++c) {
      auto* out = values[c].data() + block->num_rows;
      columns[c].column->Read(rows, out);
      columns[c].check(*columns[c].column, columns[c].limit, out, rows, first_row);
    }
  };
  append(numerics_, block->numerics);
  append(floats_, block->floats);
  append(integers_, block->integers);
  for (size_t c = 0; c < id_lists_.size(); ++c) {
    UnitList<int64_t>& list = block->id_lists[c];
    id_lists_[c]->Read(rows, kMaxListValues, &list.values, &list.row_splits);
  }
  for (size_t c = 0; c < float_lists_.size(); ++c) {
    UnitList<float>& list = block->float_lists[c];
    const size_t first = list.values.size();
    float_lists_[c]->Read(rows, kMaxListValues, &list.values, &list.row_splits);
    const auto row_of = [&](int64_t i) {
      const auto end = std::upper_bound(list.row_splits.begin(), list.row_splits.end(),
                                        static_cast<int64_t>(first) + i);
      return first_row + (end - list.row_splits.begin() - 1) - block->num_rows;
    };
    CheckValues(float_lists_[c]->name(), kNumeric, kIsNumeric, list.values.data() + first,
                static_cast<int64_t>(list.values.size() - first), row_of);
  }
  block->num_rows += rows;
}

void AppendRows(const UnitBlock& block, int64_t first, int64_t rows, UnitBatch* batch) {
  const int64_t* order = block.order.data() + first;
  const int64_t at = batch->num_rows;
  const int64_t width = static_cast<int64_t>(block.numerics.size());
  batch->numerics.resize((at + rows) * width);
  for (int64_t c = 0; c < width; ++c) {
    const float* column = block.numerics[c].data();
    float* out = batch->numerics.data() + at * width + c;
    for (int64_t i = 0; i < rows; ++i) out[i * width] = column[order[i]];
  }
  AppendColumns(block.floats, order, at, rows, &batch->floats);
  AppendColumns(block.integers, order, at, rows, &batch->integers);
  AppendLists(block.id_lists, order, rows, &batch->id_lists);
  AppendLists(block.float_lists, order, rows, &batch->float_lists);
  batch->num_rows += rows;
}

UnitBatch EmptyBatch(const UnitReaderOptions& options) {
  UnitBatch batch;
  batch.floats.resize(options.label_columns.size() + options.weight_columns.size() +
                      options.float_columns.size());
  batch.integers.resize(options.id_columns.size() + options.integer_columns.size());
  Clear(options.id_list_columns.size(), &batch.id_lists);
  Clear(options.float_list_columns.size(), &batch.float_lists);
  return batch;
}

}  // namespace embedps
