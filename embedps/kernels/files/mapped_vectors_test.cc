#include "embedps/kernels/files/mapped_vectors.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_file_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

RowColumns WithoutRemovals(const RowFileSchema& schema, int64_t num_rows, int64_t seed) {
  RowColumns columns = MakeColumns(schema, num_rows, seed);
  columns.removed.assign(num_rows, 0);
  return columns;
}

TEST(EachWantedIdOfATableHasTheVectorOfItsRecord) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.Path("vectors.arrow");
  const RowFileSchema schema = MakeSchema();
  const std::vector<RowColumns> batches{WithoutRemovals(schema, 500, 1),
                                        WithoutRemovals(schema, 700, 2)};
  RowFileInfo info;
  EXPECT_OK(WriteFile(path, schema, batches, "none", &info));
  std::shared_ptr<const InitialVectors> vectors;
  int64_t count = 0;
  const int table = 1;
  {
    std::unique_ptr<MappedVectors> file;
    EXPECT_OK(MappedVectors::Open(path, SumOf(info), &file));
    EXPECT_EQ(file->schema().tables, schema.tables);
    vectors = file->OfTable(table, [](int64_t id) { return id % 2 == 0; }, &count);
  }
  std::remove(path.c_str());  // the map stays
  int64_t found = 0;
  for (const RowColumns& batch : batches) {
    for (int64_t i = 0; i < batch.num_rows; ++i) {
      std::vector<float> vector(schema.dim, -1);
      const bool has = vectors->Read(batch.id[i], vector.data());
      EXPECT_EQ(has, batch.table[i] == table && batch.id[i] % 2 == 0);
      if (!has) continue;
      ++found;
      const auto first = batch.embedding.begin() + i * schema.dim;
      EXPECT_EQ(vector, std::vector<float>(first, first + schema.dim));
    }
  }
  EXPECT_EQ(found, count);
  EXPECT_TRUE(count > 150);
}

TEST(FileThatIsGoneOrChangedIsRefused) {
  const testing::TemporaryDirectory folder;
  const std::string path = folder.Path("vectors.arrow");
  RowFileInfo info;
  EXPECT_OK(WriteFile(path, MakeSchema(), {WithoutRemovals(MakeSchema(), 50, 1)}, "none", &info));
  const std::string whole = ReadBytes(path);
  std::unique_ptr<MappedVectors> file;
  for (size_t at = 0; at < whole.size(); at += 37) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    WriteBytes(path, damaged);
    const Status status = MappedVectors::Open(path, SumOf(info), &file);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    // Someone who damages a file and makes its checksum anew gets an error, or vectors in bounds.
    FileSum sum;
    EXPECT_OK(ChecksumFile(path, &sum));
    if (!MappedVectors::Open(path, sum, &file).ok()) continue;
    int64_t count = 0;
    const int num_tables = static_cast<int>(file->schema().tables.size());
    for (int t = 0; t < num_tables; ++t) {
      std::vector<int64_t> ids;
      const auto keep = [&ids](int64_t id) {
        ids.push_back(id);
        return true;
      };
      const auto vectors = file->OfTable(t, keep, &count);
      std::vector<float> vector(file->schema().dim);
      for (const int64_t id : ids) EXPECT_TRUE(vectors->Read(id, vector.data()));
    }
  }
  std::remove(path.c_str());
  EXPECT_EQ(MappedVectors::Open(path, SumOf(info), &file).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
