#include "embedps/kernels/row_file.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "embedps/kernels/row_file_reader.h"
#include "embedps/kernels/row_file_writer.h"
#include "embedps/kernels/testing.h"

namespace embedps {
namespace {

using testing::TemporaryDirectory;

RowFileSchema MakeSchema() {
  RowFileSchema schema;
  schema.dim = 3;
  schema.tables = {"C1", "C2", "quoted \"name\", with comma"};
  schema.optimizer_slots = {{"accumulator", 1}, {"momentum", 3}};
  schema.metadata = {{"shard", "1-of-2"}, {"step", "77"}};
  return schema;
}

// Record i's values follow from i and `seed`; every third record is a removal.
RowColumns MakeColumns(const RowFileSchema& schema, int64_t num_rows, int64_t seed) {
  RowColumns columns;
  columns.num_rows = num_rows;
  columns.optimizer_slots.resize(schema.optimizer_slots.size());
  for (int64_t i = 0; i < num_rows; ++i) {
    const bool removed = i % 3 == 1;
    columns.table.push_back(static_cast<int16_t>((i + seed) % schema.tables.size()));
    columns.id.push_back((i * 0x9E3779B97F4A7C15LL) ^ seed);
    for (int d = 0; d < schema.dim; ++d) {
      columns.embedding.push_back(removed ? 0 : static_cast<float>(i) + 0.25f * d + seed);
    }
    for (size_t s = 0; s < schema.optimizer_slots.size(); ++s) {
      for (int d = 0; d < schema.optimizer_slots[s].width; ++d) {
        columns.optimizer_slots[s].push_back(removed ? 0 : -static_cast<float>(i) - d - 10.f * s);
      }
    }
    columns.last_step.push_back(static_cast<uint32_t>(4000000000u + i));
    columns.frequency.push_back(static_cast<uint32_t>(i * 7));
    columns.removed.push_back(removed ? 1 : 0);
  }
  return columns;
}

int64_t NumRemoved(int64_t num_rows) { return (num_rows + 1) / 3; }

void ExpectSameColumns(const RowColumns& found, const RowColumns& expected) {
  EXPECT_EQ(found.num_rows, expected.num_rows);
  EXPECT_EQ(found.table, expected.table);
  EXPECT_EQ(found.id, expected.id);
  EXPECT_EQ(found.embedding, expected.embedding);
  EXPECT_EQ(found.optimizer_slots, expected.optimizer_slots);
  EXPECT_EQ(found.last_step, expected.last_step);
  EXPECT_EQ(found.frequency, expected.frequency);
  EXPECT_EQ(found.removed, expected.removed);
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

Status WriteFile(const std::string& path, const RowFileSchema& schema,
                 const std::vector<RowColumns>& batches, const std::string& compression,
                 RowFileInfo* info) {
  std::unique_ptr<RowFileWriter> writer;
  EMBEDPS_RETURN_IF_ERROR(RowFileWriter::Open(path, schema, compression, &writer));
  for (const RowColumns& batch : batches) EMBEDPS_RETURN_IF_ERROR(writer->Append(batch));
  return writer->Finish(info);
}

FileSum SumOf(const RowFileInfo& info) { return {info.bytes, info.xxh3_64}; }

// Opens the file and reads every batch; the first failure.
Status ReadAll(const std::string& path, const std::optional<FileSum>& expected = std::nullopt) {
  std::unique_ptr<RowFileReader> reader;
  EMBEDPS_RETURN_IF_ERROR(RowFileReader::Open(path, expected, &reader));
  RowColumns columns;
  for (int b = 0; b < reader->num_batches(); ++b) {
    EMBEDPS_RETURN_IF_ERROR(reader->Read(b, &columns));
  }
  return reader->Finish();
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

uint64_t ChecksumOf(const TemporaryDirectory& directory, const std::string& bytes) {
  const std::string path = directory.Path("some bytes");
  WriteBytes(path, bytes);
  FileSum sum;
  EXPECT_OK(ChecksumFile(path, &sum));
  return sum.xxh3_64;
}

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
  for (const RowEncoding rows : {RowEncoding::kFloat32, RowEncoding::kInt8, RowEncoding::kInt4}) {
    for (const SlotEncoding slots : {SlotEncoding::kFloat32, SlotEncoding::kBfloat16}) {
      TemporaryDirectory directory;
      const std::string path = directory.Path("rows.arrow");
      RowFileSchema schema = MakeSchema();
      schema.rows = rows;
      schema.slots = slots;
      const RowColumns columns = MakeColumns(schema, 1000, 2);
      RowFileInfo info;
      ASSERT_OK(WriteFile(path, schema, {columns}, "none", &info));
      std::unique_ptr<RowFileReader> reader;
      ASSERT_OK(RowFileReader::Open(path, std::nullopt, &reader));
      EXPECT_EQ(reader->schema().dim, schema.dim);
      EXPECT_TRUE(reader->schema().rows == rows && reader->schema().slots == slots);
      EXPECT_TRUE(reader->schema().metadata == schema.metadata);
      RowColumns expected = columns;
      uint8_t codes[3];
      float scale, offset;
      for (int64_t i = 0; i < 1000 && rows != RowEncoding::kFloat32; ++i) {
        float* row = &expected.embedding[3 * i];
        EncodeRow(rows, row, 3, codes, &scale, &offset);
        DecodeRow(rows, codes, scale, offset, 3, row);
      }
      for (auto& values : expected.optimizer_slots) {
        for (float& value : values) {
          if (slots == SlotEncoding::kBfloat16) value = FromBfloat16(ToBfloat16(value));
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

TEST(ChecksumIsTheFilesOwn) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  const RowFileSchema schema = MakeSchema();
  RowFileInfo info;
  ASSERT_OK(WriteFile(path, schema, {MakeColumns(schema, 300, 0)}, "none", &info));
  FileSum sum;
  ASSERT_OK(ChecksumFile(path, &sum));
  EXPECT_EQ(sum.bytes, info.bytes);
  EXPECT_EQ(sum.xxh3_64, info.xxh3_64);
  EXPECT_OK(VerifyFile(path, SumOf(info)));

  std::string changed = ReadBytes(path);
  changed[changed.size() / 2] ^= 1;
  WriteBytes(path, changed);
  EXPECT_STATUS(VerifyFile(path, SumOf(info)), StatusCode::kDataLoss, path, "'xxh3_64'", "expected",
                "found");
  WriteBytes(path, changed.substr(1));
  EXPECT_STATUS(VerifyFile(path, SumOf(info)), StatusCode::kDataLoss, "'bytes'",
                "expected " + std::to_string(info.bytes),
                "found " + std::to_string(info.bytes - 1));
  EXPECT_STATUS(VerifyFile(directory.Path("absent"), {}), StatusCode::kNotFound, "absent");
}

TEST(ChecksumOfNothingIsXxh3sConstant) {
  TemporaryDirectory directory;
  WriteBytes(directory.Path("empty"), "");
  FileSum sum{-1, 0};
  ASSERT_OK(ChecksumFile(directory.Path("empty"), &sum));
  EXPECT_EQ(sum.bytes, 0);
  EXPECT_EQ(sum.xxh3_64,
            0x2d06800538d394c2ull);  // XXH3_64bits of no input, by xxHash's specification
}

// Files of less than one of the writer's buffers, and of several.
TEST(ChecksumsOfLongFilesAreOfTheirBytes) {
  TemporaryDirectory directory;
  const RowFileSchema schema = MakeSchema();
  for (const int64_t rows : {5000, 40000, 47000, 150000}) {
    const std::string path = directory.Path(std::to_string(rows) + ".arrow");
    RowFileInfo info;
    ASSERT_OK(WriteFile(path, schema, {MakeColumns(schema, rows, 0)}, "none", &info));
    const std::string bytes = ReadBytes(path);
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), info.bytes);
    EXPECT_OK(VerifyFile(path, SumOf(info)));
    const int64_t num_pieces = (info.bytes + kFilePieceBytes - 1) / kFilePieceBytes;
    int64_t pieces_a_block = 1;
    while (num_pieces > pieces_a_block * kMaxFileBlocks) pieces_a_block *= 2;
    const int64_t block_bytes = pieces_a_block * kFilePieceBytes;
    std::vector<uint64_t> blocks;
    for (int64_t first = 0; first < info.bytes; first += block_bytes) {
      std::vector<uint64_t> pieces;
      const int64_t last = std::min(info.bytes, first + block_bytes);
      for (int64_t at = first; at < last; at += kFilePieceBytes) {
        const int64_t size = std::min(kFilePieceBytes, last - at);
        pieces.push_back(ChecksumOf(directory, bytes.substr(at, size)));
      }
      std::string words(reinterpret_cast<const char*>(pieces.data()), 8 * pieces.size());
      blocks.push_back(ChecksumOf(directory, words));
    }
    EXPECT_TRUE(blocks == info.blocks);
  }
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
  // A full disk is the one write error that needs no privilege to produce.
  if (::access("/dev/full", W_OK) != 0) return;
  const std::string path = directory.Path("full.arrow");
  std::filesystem::create_symlink("/dev/full", path + ".tmp");
  const RowFileSchema schema = MakeSchema();
  ASSERT_OK(RowFileWriter::Open(path, schema, "none", &writer));
  EXPECT_STATUS(writer->Append(MakeColumns(schema, 40000, 0)), StatusCode::kIoError, "full.arrow",
                "No space left");
  // What is less than the writer's buffer is written at the end.
  std::filesystem::create_symlink("/dev/full", directory.Path("less.arrow.tmp"));
  ASSERT_OK(RowFileWriter::Open(directory.Path("less.arrow"), schema, "none", &writer));
  ASSERT_OK(writer->Append(MakeColumns(schema, 3, 0)));
  RowFileInfo info;
  EXPECT_STATUS(writer->Finish(&info), StatusCode::kIoError, "less.arrow", "No space left");
  EXPECT_FALSE(std::filesystem::exists(directory.Path("less.arrow")));
  writer.reset();
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(path + ".tmp")));
}

TEST(ReaderRefusesWhatIsNotARowFile) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  EXPECT_STATUS(ReadAll(path), StatusCode::kNotFound, path);
  for (const std::string bytes : {"", "ARROW1", "not an arrow file, but long enough to be one"}) {
    WriteBytes(path, bytes);
    EXPECT_STATUS(ReadAll(path), StatusCode::kDataLoss, path);
  }
}

TEST(FileTruncatedAfterItWasOpenedIsDataLoss) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  const RowFileSchema schema = MakeSchema();
  RowFileInfo info;
  const RowColumns columns_of_a_batch = MakeColumns(schema, 60000, 0);
  ASSERT_OK(WriteFile(path, schema, {columns_of_a_batch, columns_of_a_batch}, "none", &info));
  EXPECT_TRUE(info.bytes > kMaxWholeFileBytes);
  std::unique_ptr<RowFileReader> reader;
  ASSERT_OK(RowFileReader::Open(path, std::nullopt, &reader));
  RowColumns columns;
  ASSERT_OK(reader->Read(0, &columns));
  std::filesystem::resize_file(path, info.bytes / 2);  // a mapped page past it would be SIGBUS
  EXPECT_STATUS(reader->Read(1, &columns), StatusCode::kDataLoss, path, "record batch 1");
}

// Of one that is read whole, and of one whose checksum is taken while it is read.
TEST(FileIsReadOnceAndRefusedWhereItIsNotTheExpectedOne) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  const RowFileSchema schema = MakeSchema();
  for (const int64_t rows : {300, 200000}) {
    RowFileInfo info;
    ASSERT_OK(WriteFile(path, schema, {MakeColumns(schema, rows, 0)}, "none", &info));
    const bool whole = info.bytes <= kMaxWholeFileBytes;
    EXPECT_EQ(whole, rows == 300);
    const std::string bytes = ReadBytes(path);
    EXPECT_OK(ReadAll(path, SumOf(info)));
    const int64_t size = static_cast<int64_t>(bytes.size());
    // In the schema that stands before the batches, in a batch, in the footer, in the last bytes.
    for (const int64_t at : {int64_t{40}, size / 3, size / 2, size - 300, size - 1}) {
      std::string changed = bytes;
      changed[at] ^= 4;
      WriteBytes(path, changed);
      EXPECT_STATUS(ReadAll(path, SumOf(info)), StatusCode::kDataLoss, path, "'xxh3_64'",
                    "expected", "found");
      std::unique_ptr<RowFileReader> reader;
      if (whole) EXPECT_TRUE(!RowFileReader::Open(path, SumOf(info), &reader).ok());
    }
    for (const std::string& changed : {bytes.substr(0, size / 2), bytes + "more", std::string()}) {
      WriteBytes(path, changed);
      EXPECT_STATUS(ReadAll(path, SumOf(info)), StatusCode::kDataLoss, "'bytes'",
                    "expected " + std::to_string(size), "found " + std::to_string(changed.size()));
    }
  }
}

TEST(LongFilesBatchesMayBeReadInAnyOrderBeforeItsSumIsCompared) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  const RowFileSchema schema = MakeSchema();
  RowFileInfo info;
  ASSERT_OK(WriteFile(path, schema, {MakeColumns(schema, 200000, 0)}, "none", &info));
  for (const std::vector<int>& order : {std::vector<int>{}, {3, 0, 2}, {1, 1, 0, 1}}) {
    for (const bool same : {true, false}) {
      std::unique_ptr<RowFileReader> reader;
      const FileSum expected{info.bytes, info.xxh3_64 ^ (same ? 0 : 1)};
      ASSERT_OK(RowFileReader::Open(path, expected, &reader));
      RowColumns columns;
      for (const int batch : order) ASSERT_OK(reader->Read(batch, &columns));
      EXPECT_EQ(reader->Finish().ok(), same);
    }
  }
}

// Whatever bytes a file has, reading it ends with rows or with a Status: never a crash, never more
// memory than a batch. Run under ASan, this is the reader's fuzz test.
TEST(DamagedFilesNeverCrashTheReader) {
  for (const std::string compression : {"none", "lz4", "zstd"}) {
    TemporaryDirectory directory;
    const std::string path = directory.Path("rows.arrow");
    RowFileSchema schema = MakeSchema();
    if (compression == "lz4") schema.rows = RowEncoding::kInt4;
    if (compression == "zstd") schema.slots = SlotEncoding::kBfloat16;
    RowFileInfo info;
    ASSERT_OK(WriteFile(path, schema, {MakeColumns(schema, 40, 0), MakeColumns(schema, 3, 1)},
                        compression, &info));
    const std::string bytes = ReadBytes(path);
    int num_refused = 0;
    int num_data_loss = 0;
    const auto try_bytes = [&](const std::string& damaged) {
      WriteBytes(path, damaged);
      const Status status = ReadAll(path);
      num_refused += !status.ok();
      num_data_loss += status.code() == StatusCode::kDataLoss;
      EXPECT_TRUE(status.ok() || testing::Contains(status.message(), path));
    };
    for (size_t length = 0; length < bytes.size(); length += 7) try_bytes(bytes.substr(0, length));
    const int num_truncated = num_refused;
    EXPECT_EQ(num_truncated, static_cast<int>((bytes.size() + 6) / 7));
    for (size_t i = 0; i < bytes.size(); i += 3) {
      std::string damaged = bytes;
      damaged[i] ^= static_cast<char>(1 << (i % 8));
      try_bytes(damaged);
      damaged[i] = static_cast<char>(0xFF);
      try_bytes(damaged);
    }
    EXPECT_TRUE(num_refused > num_truncated);
    EXPECT_EQ(num_data_loss, num_refused);
  }
}

// Flips the sign bit of one stored table index: found where it is used, before it indexes.
TEST(TableIndexOutOfRangeIsNamed) {
  TemporaryDirectory directory;
  const std::string path = directory.Path("rows.arrow");
  RowFileSchema schema = MakeSchema();
  RowColumns columns = MakeColumns(schema, 64, 0);
  const std::vector<int16_t> pattern(columns.table.begin(), columns.table.end());
  RowFileInfo info;
  ASSERT_OK(WriteFile(path, schema, {columns}, "none", &info));
  std::string bytes = ReadBytes(path);
  const std::string needle(reinterpret_cast<const char*>(pattern.data()),
                           pattern.size() * sizeof(int16_t));
  const size_t at = bytes.find(needle);
  EXPECT_TRUE(at != std::string::npos);
  if (at == std::string::npos) return;
  bytes[at + 2 * 5 + 1] ^= static_cast<char>(0x80);  // record 5, high byte
  WriteBytes(path, bytes);
  const int found = pattern[5] - 32768;
  EXPECT_STATUS(ReadAll(path), StatusCode::kDataLoss, path, "record batch 0", "field 'table'",
                "row 5", "[0, 3)", "found " + std::to_string(found));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
