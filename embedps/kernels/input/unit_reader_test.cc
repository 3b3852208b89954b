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

// Row i: row = i; x = i / 2, null in every fifth row; tags = {i, i + 1, ...}, i % 4 of them.
constexpr int64_t kRows = 1000;

bool IsNull(int64_t row) { return row % 5 == 0; }
int64_t NumTags(int64_t row) { return row % 4; }

void WriteRowGroup(parquet::RowGroupWriter* group, int64_t first, int64_t rows) {
  std::vector<int64_t> values(rows);
  std::iota(values.begin(), values.end(), first);
  static_cast<parquet::Int64Writer*>(group->NextColumn())
      ->WriteBatch(rows, nullptr, nullptr, values.data());

  std::vector<double> xs;
  std::vector<int16_t> definitions, repetitions;
  for (int64_t row = first; row < first + rows; ++row) {
    definitions.push_back(IsNull(row) ? 0 : 1);
    if (!IsNull(row)) xs.push_back(0.5 * row);
  }
  static_cast<parquet::DoubleWriter*>(group->NextColumn())
      ->WriteBatch(rows, definitions.data(), nullptr, xs.data());

  values.clear();
  definitions.clear();
  for (int64_t row = first; row < first + rows; ++row) {
    for (int64_t tag = 0; tag < NumTags(row); ++tag) {
      values.push_back(row + tag);
      definitions.push_back(2);
      repetitions.push_back(tag == 0 ? 0 : 1);
    }
    if (NumTags(row) == 0) {
      definitions.push_back(1);  // an empty list
      repetitions.push_back(0);
    }
  }
  static_cast<parquet::Int64Writer*>(group->NextColumn())
      ->WriteBatch(definitions.size(), definitions.data(), repetitions.data(), values.data());
}

void WriteParquet(const std::string& path, int64_t row_group_rows) {
  const NodePtr tags = GroupNode::Make(
      "tags", Repetition::OPTIONAL,
      {GroupNode::Make(
          "list", Repetition::REPEATED,
          {PrimitiveNode::Make("element", Repetition::REQUIRED, parquet::Type::INT64)})},
      parquet::LogicalType::List());
  const NodePtr schema = GroupNode::Make(
      "schema", Repetition::REQUIRED,
      {PrimitiveNode::Make("row", Repetition::REQUIRED, parquet::Type::INT64),
       PrimitiveNode::Make("x", Repetition::OPTIONAL, parquet::Type::DOUBLE), tags});
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
    WriteRowGroup(writer->AppendRowGroup(), first, std::min(row_group_rows, kRows - first));
  }
  writer->Close();
  PARQUET_THROW_NOT_OK(sink->Close());
}

UnitReaderOptions MakeOptions(const std::string& path) {
  UnitReaderOptions options;
  options.path = path;
  options.batch_rows = 37;
  options.float_columns = {"x", "row"};
  options.id_columns = {"row"};
  options.list_columns = {"tags"};
  return options;
}

// Checks that the columns of a batch match. Appends its row ids.
void CheckBatch(const UnitBatch& batch, std::vector<int64_t>* rows) {
  EXPECT_EQ(static_cast<int64_t>(batch.floats.size()), 2 * batch.num_rows);
  EXPECT_EQ(static_cast<int64_t>(batch.ids[0].size()), batch.num_rows);
  EXPECT_EQ(static_cast<int64_t>(batch.lists[0].row_splits.size()), batch.num_rows + 1);
  for (int64_t i = 0; i < batch.num_rows; ++i) {
    const int64_t row = batch.ids[0][i];
    rows->push_back(row);
    const float x = batch.floats[2 * i];
    EXPECT_TRUE(IsNull(row) ? std::isnan(x) : x == 0.5f * row);
    EXPECT_EQ(batch.floats[2 * i + 1], static_cast<float>(row));
    const int64_t begin = batch.lists[0].row_splits[i];
    EXPECT_EQ(batch.lists[0].row_splits[i + 1] - begin, NumTags(row));
    for (int64_t tag = 0; tag < NumTags(row); ++tag) {
      EXPECT_EQ(batch.lists[0].values[begin + tag], row + tag);
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
  options.id_columns = {"tags"};
  EXPECT_STATUS(UnitReader::Open(options, &reader), StatusCode::kInvalidArgument, "'tags'",
                "one number a row");
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
