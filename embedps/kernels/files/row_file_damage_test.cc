// Tests that the reader refuses a row file that is damaged, truncated or another one: by its
// checksums or while it reads.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/files/row_file_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using testing::TemporaryDirectory;

uint64_t ChecksumOf(const TemporaryDirectory& directory, const std::string& bytes) {
  const std::string path = directory.Path("some bytes");
  WriteBytes(path, bytes);
  FileSum sum;
  EXPECT_OK(ChecksumFile(path, &sum));
  return sum.xxh3_64;
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

// Files that are smaller than the writer's buffer, and files of several buffers.
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

// For a file that is read whole, and for one whose checksum is taken while it is read.
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
    // In the schema before the batches, in a batch, in the footer, in the last bytes.
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

// Reading a file of any bytes ends with rows or with a Status: without a crash, and with memory for
// at most one batch. Under ASan this is the reader's fuzz test.
TEST(DamagedFilesNeverCrashTheReader) {
  for (const std::string compression : {"none", "lz4", "zstd"}) {
    TemporaryDirectory directory;
    const std::string path = directory.Path("rows.arrow");
    RowFileSchema schema = MakeSchema();
    if (compression == "lz4") schema.embedding_encoding = EmbeddingEncoding::kInt4;
    if (compression == "zstd") schema.optimizer_slot_encoding = OptimizerSlotEncoding::kBfloat16;
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

// Flips the sign bit of a stored table index. The reader must find it before it uses the index.
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
