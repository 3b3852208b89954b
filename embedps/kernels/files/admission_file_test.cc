#include "embedps/kernels/files/admission_file.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

const std::vector<std::string> kTables = {"a", "b"};

CounterColumns MakeColumns(int64_t num_records) {
  CounterColumns columns;
  columns.num_records = num_records;
  for (int64_t i = 0; i < num_records; ++i) {
    const bool removed = i % 5 == 0;
    columns.table.push_back(static_cast<int16_t>(i % 2));
    columns.id.push_back(i - 3);
    columns.count.push_back(removed ? 0 : 1 + i % 200);
    columns.last_step.push_back(removed ? 0 : i << 10);
    columns.removed.push_back(removed);
  }
  return columns;
}

void Write(const std::string& path, const CounterColumns& columns, RowFileInfo* info) {
  std::unique_ptr<AdmissionFileWriter> writer;
  EXPECT_OK(AdmissionFileWriter::Open(path, kTables, &writer));
  EXPECT_OK(writer->Append(columns));
  EXPECT_OK(writer->Finish(info));
}

Status Read(const std::string& path, const FileSum& expected, CounterColumns* all) {
  return ReadAdmissionFile(
      path, expected, [&](const CounterColumns& columns, const std::vector<std::string>& tables) {
        EXPECT_EQ(tables, kTables);
        const auto append = [](const auto& from, auto* to) {
          to->insert(to->end(), from.begin(), from.end());
        };
        all->num_records += columns.num_records;
        append(columns.table, &all->table);
        append(columns.id, &all->id);
        append(columns.count, &all->count);
        append(columns.last_step, &all->last_step);
        append(columns.removed, &all->removed);
      });
}

TEST(RecordsComeBackInOrderOverSeveralBatches) {
  const CounterColumns columns = MakeColumns(150000);
  const testing::TemporaryDirectory folder;
  const std::string path = folder.Path("save/whole.arrow");
  RowFileInfo info;
  Write(path, columns, &info);
  EXPECT_EQ(info.rows, 120000);
  EXPECT_EQ(info.removed, 30000);
  CounterColumns found;
  EXPECT_OK(Read(path, {info.bytes, info.xxh3_64}, &found));
  EXPECT_EQ(found.num_records, columns.num_records);
  EXPECT_TRUE(found.table == columns.table && found.id == columns.id);
  EXPECT_TRUE(found.count == columns.count && found.last_step == columns.last_step);
  EXPECT_TRUE(found.removed == columns.removed);
}

TEST(DamagedFileIsDataLossWhetherOrNotItsChecksumWasMade) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.Path("damaged.arrow");
  RowFileInfo info;
  Write(path, MakeColumns(300), &info);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  for (size_t at = 0; at < whole.size(); at += 17) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    std::ofstream(path, std::ios::binary) << damaged;
    CounterColumns found;
    EXPECT_FALSE(Read(path, {info.bytes, info.xxh3_64}, &found).ok());
    EXPECT_EQ(found.num_records, 0);
    // Someone who damages a file and makes its checksum anew gets an error, or records in bounds.
    FileSum sum;
    EXPECT_OK(ChecksumFile(path, &sum));
    (void)Read(path, sum, &found);
    for (const int16_t table : found.table) EXPECT_TRUE(table >= 0 && table < 2);
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
