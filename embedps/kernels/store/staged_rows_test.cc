#include "embedps/kernels/store/staged_rows.h"

#include <cstdint>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store_testing.h"

namespace embedps {
namespace {

constexpr int kDim = 3;
const std::vector<int> kTables = {1, -1, 0};  // of the files, in the store

// A batch of records with values that no other has; every ninth is a removal.
RowColumns MakeRecords(int64_t n, uint64_t seed) {
  RowColumns columns;
  columns.num_rows = n;
  uint64_t random = seed;
  for (int64_t i = 0; i < n; ++i) {
    random = Mix64(random + 1);
    columns.table.push_back(static_cast<int16_t>(random % 3));
    columns.id.push_back(static_cast<int64_t>((random >> 8) % 500));
    columns.removed.push_back(random % 9 == 0);
    columns.last_step.push_back(static_cast<uint32_t>(i));
    columns.frequency.push_back(static_cast<uint32_t>(seed));
    for (int d = 0; d < kDim; ++d) columns.embedding.push_back(static_cast<float>(seed * 1e4 + i));
  }
  return columns;
}

TEST(StagedRecordsGiveTheRowsOfALoad) {
  for (const int num_shards : {1, 3}) {
    RowStore loaded(MakeConfig(kDim, 2)), applied(MakeConfig(kDim, 2));
    int64_t loads = 0, adds = 0;
    for (const std::vector<uint64_t>& seeds : {std::vector<uint64_t>{1, 2, 3}, {4}, {}, {5, 6}}) {
      StagedRows staged = applied.Stage(num_shards - 1, num_shards);
      for (const uint64_t seed : seeds) {  // later records of an id count
        const RowColumns columns = MakeRecords(700, seed);
        loads += loaded.Load(columns, kTables, num_shards - 1, num_shards, false, SerialFor);
        adds += staged.Add(columns, kTables);
      }
      const Rows before = BaseOf(&applied);
      staged.Finish();
      EXPECT_TRUE(applied.CanApply(staged));
      EXPECT_TRUE(BaseOf(&applied) == before);  // nothing has changed yet
      applied.Apply(staged, SerialFor);
      EXPECT_TRUE(BaseOf(&applied) == BaseOf(&loaded));
      EXPECT_EQ(applied.Stats().rows, loaded.Stats().rows);
    }
    EXPECT_EQ(adds, loads);
    EXPECT_TRUE(num_shards > 1 || NumRows(applied, 0) > 300);
  }
}

TEST(StagedRecordsAreOfTheirTables) {
  const RowStore store(MakeConfig(kDim, 2));
  StagedRows staged = store.Stage(0, 1);
  staged.Finish();
  EXPECT_TRUE(!RowStore(MakeConfig(kDim, 1)).CanApply(staged));
  EXPECT_TRUE(!RowStore(MakeConfig(kDim + 1, 2)).CanApply(staged));
}

TEST(ACompactStoreHasLittleRoomForGrowth) {
  constexpr int kTableCount = 8, kRowDim = 16;
  constexpr int64_t kRows = 20000;  // per table
  RowStoreConfig config = MakeConfig(kRowDim, kTableCount);
  config.compact = true;
  RowStore store(config);
  RowColumns columns;
  for (int64_t id = 0; id < kRows; ++id) {
    for (int16_t t = 0; t < kTableCount; ++t) {
      columns.table.push_back(t);
      columns.id.push_back(id);
    }
  }
  columns.num_rows = kRows * kTableCount;
  columns.embedding.assign(columns.num_rows * kRowDim, 0.5f);
  columns.last_step.assign(columns.num_rows, 1);
  columns.frequency.assign(columns.num_rows, 1);
  columns.removed.assign(columns.num_rows, 0);
  std::vector<int> tables;
  for (int t = 0; t < kTableCount; ++t) tables.push_back(t);
  StagedRows staged = store.Stage(0, 1);
  staged.Add(columns, tables);
  staged.Finish();
  store.Apply(staged, SerialFor);
  int64_t bytes = 0;  // without what is ready for more rows, which is 4 MiB at most
  for (const int64_t table_bytes : store.Stats().table_bytes) bytes += table_bytes;
  EXPECT_TRUE(bytes <= 1.25 * columns.num_rows * (4 * kRowDim + 16));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
