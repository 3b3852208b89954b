#include "embedps/kernels/input/unit_reader.h"

#include <arrow/io/file.h>
#include <parquet/column_writer.h>
#include <parquet/exception.h>
#include <parquet/file_writer.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using parquet::Repetition;
using parquet::schema::GroupNode;
using parquet::schema::NodePtr;
using parquet::schema::PrimitiveNode;
using testing::TemporaryDirectory;

// Row i: row = i; x = i / 2, null in every fifth row; tags = {i, i + 1, ...}, i % 4 of them;
// parts = {i / 2, i / 2 + 1, ...}, i % 3 of them; one = {i}, and {i, i} in row `pair_row`.
constexpr int64_t kRows = 1000;
constexpr int64_t kNone = -1;

bool IsNull(int64_t row) { return row % 5 == 0; }
int64_t NumTags(int64_t row) { return row % 4; }
int64_t NumParts(int64_t row) { return row % 3; }

// Writes a column of lists: row i has num_elements(i) elements, the k-th of which is element(i, k).
template <typename Writer, typename T, typename NumElements, typename Element>
void WriteLists(parquet::RowGroupWriter* group, int64_t first, int64_t rows,
                NumElements num_elements, Element element) {
  std::vector<T> values;
  std::vector<int16_t> definitions, repetitions;
  for (int64_t row = first; row < first + rows; ++row) {
    for (int64_t k = 0; k < num_elements(row); ++k) {
      values.push_back(element(row, k));
      definitions.push_back(2);
      repetitions.push_back(k == 0 ? 0 : 1);
    }
    if (num_elements(row) == 0) {
      definitions.push_back(1);  // an empty list
      repetitions.push_back(0);
    }
  }
  static_cast<Writer*>(group->NextColumn())
      ->WriteBatch(definitions.size(), definitions.data(), repetitions.data(), values.data());
}

void WriteRowGroup(parquet::RowGroupWriter* group, int64_t first, int64_t rows, int64_t pair_row) {
  std::vector<int64_t> values(rows);
  std::iota(values.begin(), values.end(), first);
  static_cast<parquet::Int64Writer*>(group->NextColumn())
      ->WriteBatch(rows, nullptr, nullptr, values.data());

  std::vector<double> xs;
  std::vector<int16_t> definitions;
  for (int64_t row = first; row < first + rows; ++row) {
    definitions.push_back(IsNull(row) ? 0 : 1);
    if (!IsNull(row)) xs.push_back(0.5 * row);
  }
  static_cast<parquet::DoubleWriter*>(group->NextColumn())
      ->WriteBatch(rows, definitions.data(), nullptr, xs.data());

  WriteLists<parquet::Int64Writer, int64_t>(group, first, rows, NumTags,
                                            [](int64_t row, int64_t k) { return row + k; });
  WriteLists<parquet::FloatWriter, float>(group, first, rows, NumParts,
                                          [](int64_t row, int64_t k) { return 0.5f * row + k; });
  WriteLists<parquet::Int64Writer, int64_t>(
      group, first, rows, [pair_row](int64_t row) { return row == pair_row ? 2 : 1; },
      [](int64_t row, int64_t) { return row; });
}

NodePtr ListNode(const char* name, parquet::Type::type type) {
  return GroupNode::Make(
      name, Repetition::OPTIONAL,
      {GroupNode::Make("list", Repetition::REPEATED,
                       {PrimitiveNode::Make("element", Repetition::REQUIRED, type)})},
      parquet::LogicalType::List());
}

void WriteParquet(const std::string& path, int64_t row_group_rows, int64_t pair_row = kNone) {
  const NodePtr schema = GroupNode::Make(
      "schema", Repetition::REQUIRED,
      {PrimitiveNode::Make("row", Repetition::REQUIRED, parquet::Type::INT64),
       PrimitiveNode::Make("x", Repetition::OPTIONAL, parquet::Type::DOUBLE),
       ListNode("tags", parquet::Type::INT64), ListNode("parts", parquet::Type::FLOAT),
       ListNode("one", parquet::Type::INT64)});
  std::shared_ptr<arrow::io::FileOutputStream> sink;
  PARQUET_ASSIGN_OR_THROW(sink, arrow::io::FileOutputStream::Open(path));
  auto properties = parquet::WriterProperties::Builder()
                        .data_pagesize(700)
                        ->enable_page_checksum()
                        ->compression(arrow::Compression::ZSTD)
                        ->build();
  auto writer = parquet::ParquetFileWriter::Open(sink, std::static_pointer_cast<GroupNode>(schema),
                                                 properties);
  for (int64_t first = 0; first < kRows; first += row_group_rows) {
    WriteRowGroup(writer->AppendRowGroup(), first, std::min(row_group_rows, kRows - first),
                  pair_row);
  }
  writer->Close();
  PARQUET_THROW_NOT_OK(sink->Close());
}

UnitReaderOptions MakeOptions(const std::string& path) {
  UnitReaderOptions options;
  options.path = path;
  options.batch_rows = 37;
  options.numeric_columns = {"x", "row"};
  options.id_columns = {"row"};
  options.integer_columns = {"one"};
  options.integer_limits = {kRows};
  options.id_list_columns = {"tags"};
  options.float_list_columns = {"parts"};
  return options;
}

// Checks that the columns of a batch match. Appends its row ids.
void CheckBatch(const UnitBatch& batch, std::vector<int64_t>* rows) {
  EXPECT_EQ(static_cast<int64_t>(batch.numerics.size()), 2 * batch.num_rows);
  EXPECT_EQ(static_cast<int64_t>(batch.integers[0].size()), batch.num_rows);
  EXPECT_EQ(static_cast<int64_t>(batch.id_lists[0].row_splits.size()), batch.num_rows + 1);
  EXPECT_EQ(static_cast<int64_t>(batch.float_lists[0].row_splits.size()), batch.num_rows + 1);
  EXPECT_EQ(batch.integers[1], batch.integers[0]);
  for (int64_t i = 0; i < batch.num_rows; ++i) {
    const int64_t row = batch.integers[0][i];
    rows->push_back(row);
    const float x = batch.numerics[2 * i];
    EXPECT_TRUE(IsNull(row) ? std::isnan(x) : x == 0.5f * row);
    EXPECT_EQ(batch.numerics[2 * i + 1], static_cast<float>(row));
    const int64_t begin = batch.id_lists[0].row_splits[i];
    EXPECT_EQ(batch.id_lists[0].row_splits[i + 1] - begin, NumTags(row));
    for (int64_t tag = 0; tag < NumTags(row); ++tag) {
      EXPECT_EQ(batch.id_lists[0].values[begin + tag], row + tag);
    }
    const int64_t first = batch.float_lists[0].row_splits[i];
    EXPECT_EQ(batch.float_lists[0].row_splits[i + 1] - first, NumParts(row));
    for (int64_t part = 0; part < NumParts(row); ++part) {
      EXPECT_EQ(batch.float_lists[0].values[first + part], 0.5f * row + part);
    }
  }
}

Status ReadRows(const UnitReaderOptions& options, std::vector<int64_t>* rows) {
  std::unique_ptr<UnitReader> reader;
  EMBEDPS_RETURN_IF_ERROR(UnitReader::Open(options, &reader));
  UnitBatch batch;
  while (true) {
    EMBEDPS_RETURN_IF_ERROR(reader->Next(&batch));
    if (batch.num_rows == 0) return Status::Ok();
    CheckBatch(batch, rows);
  }
}

TEST(RangesComeBackInOrder) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  for (const int64_t row_group_rows : {kRows, int64_t{130}, int64_t{1}}) {
    WriteParquet(path, row_group_rows);
    for (const auto& [first, count] : std::vector<std::pair<int64_t, int64_t>>{
             {0, kRows}, {129, 2}, {500, 333}, {999, 1}, {1000, 0}, {17, -1}}) {
      UnitReaderOptions options = MakeOptions(path);
      options.first_row = first;
      options.num_rows = count;
      std::vector<int64_t> rows;
      EXPECT_OK(ReadRows(options, &rows));
      std::vector<int64_t> expected(count < 0 ? kRows - first : count);
      std::iota(expected.begin(), expected.end(), first);
      EXPECT_EQ(rows, expected);
    }
  }
}

TEST(ShuffledRowsStayWholeAndWithinTheirRun) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  WriteParquet(path, 130);
  UnitReaderOptions options = MakeOptions(path);
  options.shuffle_rows = 200;
  options.seed = 5;
  std::vector<int64_t> rows, again;
  EXPECT_OK(ReadRows(options, &rows));
  EXPECT_OK(ReadRows(options, &again));
  EXPECT_EQ(rows, again);
  for (int64_t i = 0; i < kRows; ++i) EXPECT_EQ(rows[i] / 200, i / 200);
  EXPECT_FALSE(std::is_sorted(rows.begin(), rows.end()));
  EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), static_cast<size_t>(kRows));
}

TEST(ReadersCanBeDroppedAtAnyTime) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  WriteParquet(path, 130);
  EXPECT_EQ(UnitReader::num_live(), 0);
  for (int num_read = 0; num_read < 30; ++num_read) {
    UnitReaderOptions options = MakeOptions(path);
    options.prefetch_batches = 1 + num_read % 3;
    std::unique_ptr<UnitReader> reader;
    ASSERT_OK(UnitReader::Open(options, &reader));
    EXPECT_EQ(UnitReader::num_live(), 1);
    UnitBatch batch;
    for (int i = 0; i < num_read; ++i) EXPECT_OK(reader->Next(&batch));
  }
  EXPECT_EQ(UnitReader::num_live(), 0);
}

TEST(ConcurrentCallersShareTheRows) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  WriteParquet(path, 130);
  UnitReaderOptions options = MakeOptions(path);
  options.batch_rows = 3;
  options.prefetch_batches = 2;
  std::unique_ptr<UnitReader> reader;
  ASSERT_OK(UnitReader::Open(options, &reader));
  std::vector<std::vector<int64_t>> rows(4);
  std::vector<std::thread> threads;
  for (auto& mine : rows) {
    threads.emplace_back([&reader, &mine] {
      UnitBatch batch;
      do {
        EXPECT_OK(reader->Next(&batch));
        CheckBatch(batch, &mine);
      } while (batch.num_rows > 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int64_t> all;
  for (const auto& mine : rows) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  std::vector<int64_t> expected(kRows);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

TEST(OpenSaysWhatIsWrong) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  std::unique_ptr<UnitReader> reader;
  EXPECT_STATUS(UnitReader::Open(MakeOptions(path), &reader), StatusCode::kNotFound, path);
  WriteParquet(path, 130);
  UnitReaderOptions options = MakeOptions(path);
  options.id_columns = {"absent"};
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, path, "'absent'",
                "'row', 'x', 'tags'");
  options = MakeOptions(path);
  options.id_list_columns = {"parts"};
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, "'parts'",
                "a list of integers but is a list of FLOAT");
  options = MakeOptions(path);
  options.float_list_columns = {"x"};
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, "'x'",
                "a list of numbers but is DOUBLE");
  options = MakeOptions(path);
  options.integer_limits = {};
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, "integer_limits",
                "is 0");
  options = MakeOptions(path);
  options.first_row = 900;
  options.num_rows = 101;
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, "1000 rows",
                "[900, +101)");
  options = MakeOptions(path);
  options.batch_rows = 0;
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, "batch_rows",
                "is 0");
  EXPECT_EQ(UnitReader::num_live(), 0);
}

TEST(IdsThatAreNotIntegersAreDataLoss) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  WriteParquet(path, 130);
  UnitReaderOptions options = MakeOptions(path);
  options.id_columns = {"x"};
  std::vector<int64_t> rows;
  EXPECT_STATUS(ReadRows(options, &rows), StatusCode::kDataLoss, path, "row group 0", "'x'", "0.5");
}

TEST(ListsThatAreNoSingleNumbersAreDataLoss) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  WriteParquet(path, 130, /*pair_row=*/700);
  std::vector<int64_t> rows;
  EXPECT_STATUS(ReadRows(MakeOptions(path), &rows), StatusCode::kDataLoss, path, "row group 5",
                "'one'", "one element but one has 2 at row 700");
  UnitReaderOptions options = MakeOptions(path);
  options.first_row = 701;  // what is skipped need not be right
  EXPECT_OK(ReadRows(options, &rows));
  options.first_row = 3;
  options.integer_columns = {"tags"};
  EXPECT_STATUS(ReadRows(options, &rows), StatusCode::kDataLoss, path, "'tags'",
                "one element but one has 3 at row 3");
  options.first_row = 4;
  EXPECT_STATUS(ReadRows(options, &rows), StatusCode::kDataLoss, "one element but one has 0");
}

TEST(ValuesThatTheirColumnsMustNotHaveAreDataLoss) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.parquet");
  WriteParquet(path, 130);
  std::vector<int64_t> rows;
  UnitReaderOptions options = MakeOptions(path);
  options.integer_limits = {200};
  EXPECT_STATUS(ReadRows(options, &rows), StatusCode::kDataLoss, path, "row group 1", "'one'",
                "in [0, 200) but is 200 at row 200");
  options = MakeOptions(path);
  options.label_columns = {"one"};
  EXPECT_STATUS(ReadRows(options, &rows), StatusCode::kDataLoss, "'one'", "0 or 1 but is 2");
  for (auto* columns : {&options.float_columns, &options.weight_columns}) {
    options.label_columns.clear();
    columns->assign(1, "x");
    EXPECT_STATUS(ReadRows(options, &rows), StatusCode::kDataLoss, "'x' must not have nulls");
    columns->clear();
  }
}

// After damage to any byte, reading ends with the right rows or with a Status that names the file.
// Under the sanitizers this is the reader's fuzz test.
TEST(DamagedFilesNeverCrashTheReader) {
  TemporaryDirectory directory;
  const std::string good = directory.Path("good.parquet");
  const std::string path = directory.Path("bad.parquet");
  WriteParquet(good, 400);
  std::ifstream file(good, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  int num_refused = 0;
  int num_tried = 0;
  const auto try_bytes = [&](const std::string& damaged) {
    std::ofstream(path, std::ios::binary) << damaged;
    std::unique_ptr<UnitReader> reader;
    Status status = UnitReader::Open(MakeOptions(path), &reader);
    UnitBatch batch;
    for (int i = 0; status.ok() && i < 2 * kRows; ++i) {
      status = reader->Next(&batch);
      if (batch.num_rows == 0) break;
    }
    EXPECT_TRUE(status.ok() || testing::Contains(status.message(), path));
    num_refused += !status.ok();
    ++num_tried;
  };
  for (size_t length = 0; length < bytes.size(); length += 61) try_bytes(bytes.substr(0, length));
  EXPECT_EQ(num_refused, num_tried);
  for (size_t i = 0; i < bytes.size(); i += 11) {
    std::string damaged = bytes;
    damaged[i] ^= static_cast<char>(1 << (i % 8));
    try_bytes(damaged);
  }
  EXPECT_TRUE(num_refused > num_tried / 2);
  EXPECT_EQ(UnitReader::num_live(), 0);
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
