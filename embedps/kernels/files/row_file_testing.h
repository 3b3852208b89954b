// Builders, readers and comparisons for the tests of row files.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_TESTING_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_TESTING_H_

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/files/row_file_writer.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {

inline RowFileSchema MakeSchema() {
  RowFileSchema schema;
  schema.dim = 3;
  schema.tables = {"C1", "C2", "quoted \"name\", with comma"};
  schema.optimizer_slots = {{"accumulator", 1}, {"momentum", 3}};
  schema.metadata = {{"shard", "1-of-2"}, {"step", "77"}};
  return schema;
}

// Makes records whose values follow from their index and `seed`. Every third record is a removal.
inline RowColumns MakeColumns(const RowFileSchema& schema, int64_t num_rows, int64_t seed) {
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

inline int64_t NumRemoved(int64_t num_rows) { return (num_rows + 1) / 3; }

inline void ExpectSameColumns(const RowColumns& found, const RowColumns& expected) {
  EXPECT_EQ(found.num_rows, expected.num_rows);
  EXPECT_EQ(found.table, expected.table);
  EXPECT_EQ(found.id, expected.id);
  EXPECT_EQ(found.embedding, expected.embedding);
  EXPECT_EQ(found.optimizer_slots, expected.optimizer_slots);
  EXPECT_EQ(found.last_step, expected.last_step);
  EXPECT_EQ(found.frequency, expected.frequency);
  EXPECT_EQ(found.removed, expected.removed);
}

inline Status WriteFile(const std::string& path, const RowFileSchema& schema,
                        const std::vector<RowColumns>& batches, const std::string& compression,
                        RowFileInfo* info) {
  std::unique_ptr<RowFileWriter> writer;
  EMBEDPS_RETURN_IF_ERROR(RowFileWriter::Open(path, schema, compression, &writer));
  for (const RowColumns& batch : batches) EMBEDPS_RETURN_IF_ERROR(writer->Append(batch));
  return writer->Finish(info);
}

inline FileSum SumOf(const RowFileInfo& info) { return {info.bytes, info.xxh3_64}; }

// Opens a file and reads every batch. Returns the first failure.
inline Status ReadAll(const std::string& path,
                      const std::optional<FileSum>& expected = std::nullopt) {
  std::unique_ptr<RowFileReader> reader;
  EMBEDPS_RETURN_IF_ERROR(RowFileReader::Open(path, expected, &reader));
  RowColumns columns;
  for (int b = 0; b < reader->num_batches(); ++b) {
    EMBEDPS_RETURN_IF_ERROR(reader->Read(b, &columns));
  }
  return reader->Finish();
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_TESTING_H_
