#include "embedps/kernels/store/staged_rows.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/chosen_ids.h"

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

TEST(AStagedLookupReadsWhatAnAppliedOneWill) {
  RowStoreConfig config = MakeConfig(kDim, 2);
  config.tables[1].absent_reads_initial = true;
  config.tables[1].initializer = {InitializerConfig::Kind::kUniform, -1, 1};
  for (const FloatDtype dtype : {FloatDtype::kFloat32, FloatDtype::kBfloat16}) {
    config.row_dtype = dtype;
    RowStore store(config);
    store.Load(MakeRecords(700, 1), kTables, 0, 1, false, SerialFor);
    StagedRows staged = store.Stage(0, 1);
    for (const uint64_t seed : {2, 3}) staged.Add(MakeRecords(700, seed), kTables);
    staged.Finish();
    const Batch batch{Range(0, 600), Range(100, 550)};  // records, rows, and ids without either
    std::vector<float> ahead(batch.ids.size() * kDim);
    store.LookupStaged(batch.view(), staged, SerialFor, ahead.data());
    EXPECT_TRUE(ahead != Lookup(&store, batch, /*insert=*/false));
    store.Apply(staged, SerialFor);
    EXPECT_TRUE(ahead == Lookup(&store, batch, /*insert=*/false));
  }
}

std::vector<float> RatesOf(RowStore* store, const Batch& batch) {
  std::vector<float> rates(batch.ids.size());
  store->UpdateRates(batch.view(), SerialFor, rates.data());
  return rates;
}

TEST(ShownRecordsReadAsAppliedOnesBesideTheApply) {
  RowStoreConfig config = MakeConfig(kDim, 2);
  config.tables[1].absent_reads_initial = true;
  config.tables[1].initializer = {InitializerConfig::Kind::kUniform, -1, 1};
  RowStore store(config), applied(config);
  const Batch batch{Range(0, 600), Range(100, 550)};
  std::atomic<bool> ended{false};
  std::atomic<int64_t> wrong{0}, lookups{0};
  for (uint64_t turn = 1; turn < 6; ++turn) {
    // Records that a table has already are shown, too.
    const auto staged = std::make_shared<StagedRows>(store.Stage(0, 1));
    for (const uint64_t seed : {turn, turn + 1}) staged->Add(MakeRecords(700, seed), kTables);
    staged->Finish();
    applied.Apply(*staged, SerialFor);
    const std::vector<float> want = Lookup(&applied, batch, /*insert=*/false);
    const std::vector<float> want_rates = RatesOf(&applied, batch);
    const Rows before = BaseOf(&store);
    EXPECT_TRUE(Lookup(&store, batch, /*insert=*/false) != want);
    EXPECT_TRUE(RatesOf(&store, batch) != want_rates);
    store.Show(staged);
    EXPECT_TRUE(BaseOf(&store) == before);
    ended = false;
    std::thread reader([&] {
      while (!ended) {
        wrong += Lookup(&store, batch, /*insert=*/false) != want;
        wrong += RatesOf(&store, batch) != want_rates;
        ++lookups;
      }
    });
    for (const int64_t some = lookups; lookups < some + 3;) std::this_thread::yield();
    store.Apply(*staged, SerialFor);
    for (const int64_t some = lookups; lookups < some + 3;) std::this_thread::yield();
    ended = true;
    reader.join();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(staged.use_count(), 1);  // nothing reads it any more
    EXPECT_TRUE(BaseOf(&store) == BaseOf(&applied));
  }
}

TEST(StagedRecordsAreComparedWithTheRows) {
  RowStoreConfig config = MakeConfig(kDim, 2);
  config.tables[1].absent_reads_initial = true;
  config.tables[1].initializer = {InitializerConfig::Kind::kUniform, -1, 1};
  for (const FloatDtype dtype : {FloatDtype::kFloat32, FloatDtype::kBfloat16}) {
    config.row_dtype = dtype;
    RowStore store(config);
    store.Load(MakeRecords(700, 1), kTables, 0, 1, false, SerialFor);
    StagedRows staged = store.Stage(0, 1);
    for (const uint64_t seed : {2, 1}) staged.Add(MakeRecords(700, seed), kTables);
    staged.Finish();
    for (int t = 0; t < 2; ++t) {
      const auto [first, last] = staged.RangeOf(t);
      std::vector<int64_t> ids(staged.columns().id.begin() + first,
                               staged.columns().id.begin() + last);
      const Batch batch = t == 0 ? Batch{ids, {}} : Batch{{}, ids};
      std::vector<float> then(ids.size() * kDim);
      store.LookupStaged(batch.view(), staged, SerialFor, then.data());
      const std::vector<float> now = Lookup(&store, batch, /*insert=*/false);
      std::vector<uint8_t> differs(ids.size());
      store.CompareStaged(t, staged, SerialFor, reinterpret_cast<bool*>(differs.data()));
      int64_t num_different = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool differ = !std::equal(&now[i * kDim], &now[i * kDim] + kDim, &then[i * kDim]);
        EXPECT_EQ(differs[i] != 0, differ);
        num_different += differ;
      }
      EXPECT_TRUE(num_different > 10 && num_different < static_cast<int64_t>(ids.size()));
    }
  }
}

TEST(OfAnIdOnlyTheLastRecordIsStaged) {
  RowStore store(MakeConfig(kDim, 2));
  StagedRows staged = store.Stage(0, 1);
  int64_t records = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) records += staged.Add(MakeRecords(700, seed), kTables);
  staged.Finish();
  EXPECT_TRUE(records > 9 * staged.columns().num_rows);
  store.Apply(staged, SerialFor);
  size_t num_live = 0;
  for (int t = 0; t < 2; ++t) {
    const auto [first, last] = staged.RangeOf(t);
    EXPECT_EQ(last - first, 500);
    std::vector<int64_t> ids, live;
    for (int64_t i = first; i < last; ++i) {
      ids.push_back(staged.columns().id[i]);
      if (!staged.columns().removed[i]) live.push_back(ids.back());
    }
    std::sort(ids.begin(), ids.end());
    EXPECT_TRUE(ids == Range(0, 500));
    std::vector<int64_t> stored = store.Ids(t);
    std::sort(stored.begin(), stored.end());
    std::sort(live.begin(), live.end());
    EXPECT_TRUE(stored == live);
    num_live += live.size();
  }
  EXPECT_TRUE(num_live > 500 && num_live < 1000);
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

TEST(RecordsOfIdsChosenToShareBitsOfTheirHashesLoad) {
  constexpr int64_t kRecords = 20000;
  RowColumns columns = MakeRecords(kRecords, 1);
  std::fill(columns.table.begin(), columns.table.end(), int16_t{2});
  std::fill(columns.removed.begin(), columns.removed.end(), 0);
  columns.id = testing::ChosenIds(TableSalt("t0"), kRecords);
  RowStore loaded(MakeConfig(kDim, 2)), applied(MakeConfig(kDim, 2));
  EXPECT_EQ(loaded.Load(columns, kTables, 0, 1, false, SerialFor), kRecords);
  StagedRows staged = applied.Stage(0, 1);
  EXPECT_EQ(staged.Add(columns, kTables), kRecords);
  staged.Finish();
  applied.Apply(staged, SerialFor);
  EXPECT_EQ(NumRows(loaded, 0), kRecords);
  EXPECT_TRUE(BaseOf(&applied) == BaseOf(&loaded));
  // A row takes 28 bytes, and up to 12 of the index; a stripe has half a chunk and the pool more.
  EXPECT_TRUE(loaded.Stats().table_bytes[0] < kRecords * 60 + (1 << 20));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
