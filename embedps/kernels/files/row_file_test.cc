// Tests that a row file gives back what was written, and that errors name what cannot be written.
#include "embedps/kernels/files/row_file.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_encoding.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/files/row_file_testing.h"
#include "embedps/kernels/files/row_file_writer.h"
#include "embedps/kernels/runtime/bf16.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using testing::TemporaryDirectory;

TEST(RowsComeBackForEveryCompression) {
  for (const std::string compression : {"none", "lz4", "zstd"}) {
    TemporaryDirectory directory;
    const std::string path = directory.Path("rows.arrow");
    const RowFileSchema schema = MakeSchema();
    const std::vector<RowColumns> batches = {MakeColumns(schema, 5, 0), MakeColumns(schema, 0, 1),
                                             MakeColumns(schema, 1000, 2)};
    RowFileInfo info;
    ASSERT_OK(WriteFile(path, schema, batches, compression, &info));
    EXPECT_EQ(info.rows, 1005 - NumRemoved(5) - NumRemoved(1000));
    EXPECT_EQ(info.removed, NumRemoved(5) + NumRemoved(1000));
    EXPECT_EQ(info.bytes, static_cast<int64_t>(std::filesystem::file_size(path)));

    std::unique_ptr<RowFileReader> reader;
    ASSERT_OK(RowFileReader::Open(path, std::nullopt, &reader));
    EXPECT_EQ(reader->schema().dim, schema.dim);
    EXPECT_EQ(reader->schema().tables, schema.tables);
    EXPECT_TRUE(reader->schema().metadata == schema.metadata);
    EXPECT_EQ(reader->schema().optimizer_slots.size(), schema.optimizer_slots.size());
    for (size_t s = 0; s < schema.optimizer_slots.size(); ++s) {
      EXPECT_EQ(reader->schema().optimizer_slots[s].name, schema.optimizer_slots[s].name);
      EXPECT_EQ(reader->schema().optimizer_slots[s].width, schema.optimizer_slots[s].width);
    }
    EXPECT_EQ(reader->num_batches(), 2);  // an empty Append writes nothing
    RowColumns columns;
    ASSERT_OK(reader->Read(1, &columns));
    ExpectSameColumns(columns, batches[2]);
    ASSERT_OK(reader->Read(0, &columns));  // vectors shrink when reused
    ExpectSameColumns(columns, batches[0]);
    EXPECT_STATUS(reader->Read(2, &columns), StatusCode::kInvalidArgument, "[0, 2)", "is 2");
  }
}

TEST(EncodedRowsComeBackDecoded) {
  for (const EmbeddingEncoding rows :
       {EmbeddingEncoding::kFloat32, EmbeddingEncoding::kInt8, EmbeddingEncoding::kInt4}) {
    for (const OptimizerSlotEncoding slots :
         {OptimizerSlotEncoding::kFloat32, OptimizerSlotEncoding::kBfloat16}) {
      TemporaryDirectory directory;
      const std::string path = directory.Path("rows.arrow");
      RowFileSchema schema = MakeSchema();
      schema.embedding_encoding = rows;
      schema.optimizer_slot_encoding = slots;
      const RowColumns columns = MakeColumns(schema, 1000, 2);
      RowFileInfo info;
      ASSERT_OK(WriteFile(path, schema, {columns}, "none", &info));
      std::unique_ptr<RowFileReader> reader;
      ASSERT_OK(RowFileReader::Open(path, std::nullopt, &reader));
      EXPECT_EQ(reader->schema().dim, schema.dim);
      EXPECT_TRUE(reader->schema().embedding_encoding == rows &&
                  reader->schema().optimizer_slot_encoding == slots);
      EXPECT_TRUE(reader->schema().metadata == schema.metadata);
      RowColumns expected = columns;
      uint8_t codes[3];
      float scale, offset;
      for (int64_t i = 0; i < 1000 && rows != EmbeddingEncoding::kFloat32; ++i) {
        float* row = &expected.embedding[3 * i];
        EncodeRow(rows, row, 3, codes, &scale, &offset);
        DecodeRow(rows, codes, scale, offset, 3, row);
      }
      for (auto& values : expected.optimizer_slots) {
        for (float& value : values) {
          if (slots == OptimizerSlotEncoding::kBfloat16) value = FromBf16(ToBf16(value));
        }
      }
      RowColumns found;
      ASSERT_OK(reader->Read(0, &found));
      ExpectSameColumns(found, expected);
    }
  }
}

TEST(FileWithoutRecordsKeepsItsSchema) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  RowFileInfo info;
  ASSERT_OK(WriteFile(path, MakeSchema(), {}, "zstd", &info));
  EXPECT_EQ(info.rows + info.removed, 0);
  std::unique_ptr<RowFileReader> reader;
  ASSERT_OK(RowFileReader::Open(path, std::nullopt, &reader));
  EXPECT_EQ(reader->num_batches(), 0);
  EXPECT_EQ(reader->schema().tables, MakeSchema().tables);
}

RowColumns Slice(const RowFileSchema& schema, const RowColumns& all, int64_t first, int64_t rows) {
  const auto cut = [&](const auto& values, int64_t width) {
    return std::decay_t<decltype(values)>(values.begin() + first * width,
                                          values.begin() + (first + rows) * width);
  };
  RowColumns slice;
  slice.num_rows = rows;
  slice.table = cut(all.table, 1);
  slice.id = cut(all.id, 1);
  slice.embedding = cut(all.embedding, schema.dim);
  for (size_t s = 0; s < schema.optimizer_slots.size(); ++s) {
    slice.optimizer_slots.push_back(cut(all.optimizer_slots[s], schema.optimizer_slots[s].width));
  }
  slice.last_step = cut(all.last_step, 1);
  slice.frequency = cut(all.frequency, 1);
  slice.removed = cut(all.removed, 1);
  return slice;
}

TEST(LongAppendIsCutIntoBatches) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  const RowFileSchema schema = MakeSchema();
  const int64_t num_rows = 2 * kMaxRowFileBatchRows + 17;
  const RowColumns all = MakeColumns(schema, num_rows, 5);
  RowFileInfo info;
  ASSERT_OK(WriteFile(path, schema, {all}, "lz4", &info));
  EXPECT_EQ(info.rows, num_rows - NumRemoved(num_rows));
  EXPECT_EQ(info.removed, NumRemoved(num_rows));
  std::unique_ptr<RowFileReader> reader;
  ASSERT_OK(RowFileReader::Open(path, std::nullopt, &reader));
  EXPECT_EQ(reader->num_batches(), 3);
  RowColumns columns;
  int64_t first = 0;
  for (int b = 0; b < reader->num_batches(); ++b) {
    ASSERT_OK(reader->Read(b, &columns));
    EXPECT_TRUE(columns.num_rows <= kMaxRowFileBatchRows);
    ExpectSameColumns(columns, Slice(schema, all, first, columns.num_rows));
    first += columns.num_rows;
  }
  EXPECT_EQ(first, num_rows);
}

TEST(UnfinishedWriterLeavesNothing) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("new/deeper/rows.arrow");
  const RowFileSchema schema = MakeSchema();
  {
    std::unique_ptr<RowFileWriter> writer;
    ASSERT_OK(RowFileWriter::Open(path, schema, "none", &writer));
    ASSERT_OK(writer->Append(MakeColumns(schema, 10, 0)));
    EXPECT_TRUE(std::filesystem::exists(path + ".tmp"));
    EXPECT_FALSE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FinishedWriterRefusesMore) {
  TemporaryDirectory directory;
  const RowFileSchema schema = MakeSchema();
  std::unique_ptr<RowFileWriter> writer;
  ASSERT_OK(RowFileWriter::Open(directory.Path("rows.arrow"), schema, "none", &writer));
  RowFileInfo info;
  ASSERT_OK(writer->Finish(&info));
  EXPECT_STATUS(writer->Append(MakeColumns(schema, 1, 0)), StatusCode::kInvalidArgument,
                "is finished");
  EXPECT_STATUS(writer->Finish(&info), StatusCode::kInvalidArgument, "is finished");
}

TEST(WriterChecksSchemaAndColumns) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  std::unique_ptr<RowFileWriter> writer;
  RowFileSchema schema = MakeSchema();
  EXPECT_STATUS(RowFileWriter::Open(path, schema, "gzip", &writer), StatusCode::kInvalidArgument,
                "'gzip'");
  schema.dim = 0;
  EXPECT_STATUS(RowFileWriter::Open(path, schema, "none", &writer), StatusCode::kInvalidArgument,
                "'embedding'", "is 0");
  schema = MakeSchema();
  schema.optimizer_slots[0].name = "id";
  EXPECT_STATUS(RowFileWriter::Open(path, schema, "none", &writer), StatusCode::kInvalidArgument,
                "'id'");
  schema = MakeSchema();
  schema.tables.push_back("C1");
  EXPECT_STATUS(RowFileWriter::Open(path, schema, "none", &writer), StatusCode::kInvalidArgument,
                "different names");
  schema = MakeSchema();
  schema.metadata["embedps.mine"] = "";
  EXPECT_STATUS(RowFileWriter::Open(path, schema, "none", &writer), StatusCode::kInvalidArgument,
                "'embedps.mine'");

  schema = MakeSchema();
  ASSERT_OK(RowFileWriter::Open(path, schema, "none", &writer));
  RowColumns columns = MakeColumns(schema, 4, 0);
  columns.embedding.pop_back();
  EXPECT_STATUS(writer->Append(columns), StatusCode::kInvalidArgument, "'embedding'", "4 rows of 3",
                "11 values");
  columns = MakeColumns(schema, 4, 0);
  columns.optimizer_slots[1].clear();
  EXPECT_STATUS(writer->Append(columns), StatusCode::kInvalidArgument, "'momentum'");
  columns = MakeColumns(schema, 4, 0);
  columns.optimizer_slots.pop_back();
  EXPECT_STATUS(writer->Append(columns), StatusCode::kInvalidArgument, "2 optimizer slots");
  columns = MakeColumns(schema, 4, 0);
  columns.table[2] = 3;
  EXPECT_STATUS(writer->Append(columns), StatusCode::kInvalidArgument, "row 2", "[0, 3)", "is 3");
  columns.table[2] = -1;
  EXPECT_STATUS(writer->Append(columns), StatusCode::kInvalidArgument, "is -1");
}

TEST(WriterNamesWhatCannotBeWritten) {
  TemporaryDirectory directory;
  WriteBytes(directory.Path("file"), "");
  std::unique_ptr<RowFileWriter> writer;
  EXPECT_STATUS(
      RowFileWriter::Open(directory.Path("file/rows.arrow"), MakeSchema(), "none", &writer),
      StatusCode::kIoError, "file/rows.arrow");
  // A full disk is the only write error that a test can cause without privileges.
  if (::access("/dev/full", W_OK) != 0) return;
  const std::string path = directory.Path("full.arrow");
  std::filesystem::create_symlink("/dev/full", path + ".tmp");
  const RowFileSchema schema = MakeSchema();
  ASSERT_OK(RowFileWriter::Open(path, schema, "none", &writer));
  EXPECT_STATUS(writer->Append(MakeColumns(schema, 40000, 0)), StatusCode::kIoError, "full.arrow",
                "No space left");
  // A file smaller than the writer's buffer is written at the end.
  std::filesystem::create_symlink("/dev/full", directory.Path("less.arrow.tmp"));
  ASSERT_OK(RowFileWriter::Open(directory.Path("less.arrow"), schema, "none", &writer));
  ASSERT_OK(writer->Append(MakeColumns(schema, 3, 0)));
  RowFileInfo info;
  EXPECT_STATUS(writer->Finish(&info), StatusCode::kIoError, "less.arrow", "No space left");
  EXPECT_FALSE(std::filesystem::exists(directory.Path("less.arrow")));
  writer.reset();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(path + ".tmp")));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
