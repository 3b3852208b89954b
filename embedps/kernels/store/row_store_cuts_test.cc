// Tests what a row store gives to cuts and copies, and what it loads.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(CutsOfManySlicesGiveEachRowOnce) {
  RowStore store(MakeConfig(1, 1, OptimizerKind::kAdagrad));
  constexpr int64_t kRows = 64 * 1024 * 5 / 2;  // two and a half slices a stripe
  Lookup(&store, Batch{Range(0, kRows)});
  Rows rows;
  int64_t records;
  const int64_t base = CutOnto(&store, CutKind::kBase, -1, &rows, &records);
  EXPECT_EQ(records, kRows);
  EXPECT_EQ(static_cast<int64_t>(rows.size()), kRows);
  Update(&store, Batch{Range(kRows / 8, kRows)}, 1, -1, 3);
  CutOnto(&store, CutKind::kDelta, base, &rows, &records);
  EXPECT_EQ(records, kRows - kRows / 8);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(DeltasOfAnyShareOfTheRowsGiveEachOnce) {
  RowStore store(MakeConfig(3, 1, OptimizerKind::kAdagrad));
  constexpr int64_t kRows = 200000;
  Lookup(&store, Batch{Range(0, kRows)});
  Rows rows;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  for (const int64_t stride : {20000, 300, 7, 1}) {
    std::vector<int64_t> touched;
    for (int64_t id = 0; id < kRows; id += stride) touched.push_back(id);
    Update(&store, Batch{touched}, 1, -1, static_cast<uint32_t>(stride));
    Rows lost;  // not committed: its rows come again, among others
    CutOnto(&store, CutKind::kDelta, cut, &lost);
    Update(&store, Batch{{0, 1}}, 1, -1, static_cast<uint32_t>(stride));
    int64_t records;
    cut = CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
    EXPECT_EQ(records, static_cast<int64_t>(touched.size()) + (stride > 1 ? 1 : 0));
  }
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(CopyBesideDeltasIsBroughtUpToDateByThem) {
  RowStore store(MakeConfig(1, 1, OptimizerKind::kAdagrad));
  constexpr int64_t kRows = 64 * 1024 * 3;
  Lookup(&store, Batch{Range(0, kRows)});
  Rows rows, replayed;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  uint32_t step = 1;
  const auto train = [&] {
    Update(&store, Batch{Range(step * 1000, step * 1000 + 5000)}, 1, -1, step);
    std::vector<int64_t> gone = Range(step * 7000, step * 7000 + 50);
    store.Remove(0, gone.data(), gone.size());
    Lookup(&store, Batch{Range(kRows + step * 100, kRows + step * 100 + 50)});
    ++step;
  };
  train();  // after the cut that the first delta is since
  std::vector<RowColumns> records;
  const auto delta = [&] {
    EXPECT_OK(store.Cut(
        CutKind::kDelta, cut,
        [&](const RowColumns& columns) {
          records.push_back(columns);
          return Status::Ok();
        },
        &cut));
  };
  int times = 0;
  EXPECT_OK(store.Copy([&](const RowColumns& columns) {
    Apply(columns, store.config().dim, &replayed);
    train();
    if (++times % 2 == 0) delta();  // is not held up by the copy, nor the copy by it
    train();
    return Status::Ok();
  }));
  EXPECT_TRUE(times > 1);
  delta();
  for (const RowColumns& columns : records) Apply(columns, store.config().dim, &replayed);
  EXPECT_TRUE(replayed == BaseOf(&store));
}

TEST(CopyThatIsStoppedFails) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 64 * 1024 * 3)});
  int times = 0;
  const auto sink = [&](const RowColumns&) {
    ++times;
    store.StopCopies();
    return Status::Ok();
  };
  EXPECT_STATUS(store.Copy(sink), StatusCode::kIoError, "the copy was stopped");
  EXPECT_EQ(times, 1);
  EXPECT_OK(store.Copy([](const RowColumns&) { return Status::Ok(); }));  // a later one is another
}

TEST(DeltaGivesWhatWasTouchedAndRemoved) {
  RowStore store(MakeConfig(2, 2));
  Lookup(&store, Batch{Range(0, 1000), Range(0, 10)});
  Rows rows;
  int64_t records;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows, &records);
  EXPECT_EQ(records, 1010);

  cut = CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 0);
  Lookup(&store, Batch{Range(0, 1000), {}});  // reading alone touches nothing
  Update(&store, Batch{{1, 2, 3}, {3}}, 1, -1, 1);
  Update(&store, Batch{{1}, {}}, 1, -1, 2);
  cut = CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 4);
  EXPECT_TRUE(rows == BaseOf(&store));

  // Removed; removed and created again; created and removed; removed and another one created.
  RowStore again(MakeConfig(2, 2));
  rows.clear();
  Lookup(&again, Batch{Range(0, 10), {}});
  cut = CutOnto(&again, CutKind::kBase, -1, &rows);
  const int64_t two[] = {4, 5};
  EXPECT_EQ(again.Remove(0, two, 2), 2);
  EXPECT_EQ(again.Remove(0, two, 2), 0);
  Lookup(&again, Batch{{5, 77}, {88}});
  const int64_t gone[] = {77};
  EXPECT_EQ(again.Remove(0, gone, 1), 1);
  Lookup(&again, Batch{{99}, {}});
  cut = CutOnto(&again, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 2 + 3);  // 4, 5 removed, and 77 never in a file; 5, 99 and table 1's 88 there
  EXPECT_EQ(rows.count({0, 4}), size_t{0});
  EXPECT_TRUE(rows == BaseOf(&again));
}

// Returns what the columns of a batch have memory for.
int64_t CapacityBytes(const RowColumns& columns) {
  return static_cast<int64_t>(
      columns.table.capacity() * sizeof(int16_t) + columns.id.capacity() * sizeof(int64_t) +
      (columns.embedding.capacity() + columns.optimizer_slots.at(0).capacity() +
       columns.last_step.capacity() + columns.frequency.capacity()) *
          sizeof(float) +
      columns.removed.capacity());
}

TEST(MemoryOfACutIsAMegabyteAndFourBytesATouchedRow) {
  constexpr int kDim = 2;
  constexpr int64_t kRows = 100000;  // too little for a thread that makes pages meanwhile
  RowStore store(MakeConfig(kDim, 1, OptimizerKind::kAdagrad));
  Lookup(&store, Batch{Range(0, kRows)});
  EXPECT_TRUE(store.Stats().memory_bytes < static_cast<int64_t>(PagePool::kTouchFromBytes));
  for (const CutKind kind : {CutKind::kBase, CutKind::kDelta}) {
    int64_t since = -1, given = 0;
    if (kind == CutKind::kDelta) {
      since = store.MarkClean();
      Update(&store, Batch{Range(0, kRows)}, 1, 0.5f, 1);
    }
    const int64_t before = store.Stats().memory_bytes;
    const auto sink = [&](const RowColumns& columns) {
      given += columns.num_rows;
      EXPECT_TRUE(CapacityBytes(columns) <= 1 << 20);
      EXPECT_TRUE(store.Stats().memory_bytes <= before + 4 * kRows);
      return Status::Ok();
    };
    int64_t cut;
    ASSERT_OK(store.Cut(kind, since, sink, &cut));
    EXPECT_EQ(given, kRows);
    EXPECT_TRUE(store.Stats().memory_bytes <= before + 4 * kRows);
  }
}

TEST(ABatchOfLargeRowsHasASliceAtMost) {
  RowStore store(MakeConfig(2048, 1));  // so a megabyte has 127 rows
  Lookup(&store, Batch{Range(0, 64 * 300)});
  const auto sink = [&](const RowColumns& columns) {
    EXPECT_TRUE(columns.num_rows > 0 && columns.num_rows <= 256);
    return Status::Ok();
  };
  int64_t cut;
  ASSERT_OK(store.Cut(CutKind::kBase, -1, sink, &cut));
}

TEST(UncommittedCutsAreGivenAgain) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 100)});
  Rows rows, lost;
  int64_t records;
  const int64_t base = CutOnto(&store, CutKind::kBase, -1, &rows);
  Update(&store, Batch{{1, 2}}, 1, -1, 1);
  CutOnto(&store, CutKind::kDelta, base, &lost, &records);
  EXPECT_EQ(records, 2);
  Update(&store, Batch{{2, 3}}, 1, -1, 2);
  const int64_t five[] = {5};
  store.Remove(0, five, 1);
  CutOnto(&store, CutKind::kDelta, base, &lost, &records);
  EXPECT_EQ(records, 4);
  CutOnto(&store, CutKind::kBase, base, &lost, &records);  // nor is a base's failure a loss
  EXPECT_EQ(records, 99);
  const int64_t committed = CutOnto(&store, CutKind::kDelta, base, &rows, &records);
  EXPECT_EQ(records, 4);  // 1, 2, 3 and the removal of 5
  Update(&store, Batch{{4}}, 1, -1, 3);
  const int64_t last = CutOnto(&store, CutKind::kDelta, committed, &rows, &records);
  EXPECT_EQ(records, 1);
  EXPECT_EQ(last, committed + 1);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(FailedSinkLosesNothing) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 100000)});
  Rows rows;
  const int64_t base = CutOnto(&store, CutKind::kBase, -1, &rows);
  Update(&store, Batch{Range(0, 90000)}, 1, -1, 1);
  const std::vector<int64_t> removed = Range(95000, 99000);
  store.Remove(0, removed.data(), static_cast<int64_t>(removed.size()));
  for (int good = 0; good < 3; ++good) {  // batches written before the disk is full
    int batches = 0;
    int64_t cut;
    EXPECT_STATUS(store.Cut(
                      CutKind::kDelta, base,
                      [&](const RowColumns&) {
                        return batches++ < good ? Status::Ok() : Status::IoError("disk full");
                      },
                      &cut),
                  StatusCode::kIoError, "disk full");
    EXPECT_EQ(batches, good + 1);
    Update(&store, Batch{{good}}, 1, -1, 2);
  }
  int64_t records;
  const int64_t cut = CutOnto(&store, CutKind::kDelta, base, &rows, &records);
  EXPECT_EQ(records, 94000);
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 0);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(DeltaSinceAnUnknownCutIsRefusedAndABaseHelps) {
  RowStore store(MakeConfig(1, 1));
  Lookup(&store, Batch{Range(0, 10)});
  Rows rows;
  int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  for (int i = 0; i < 3; ++i) cut = CutOnto(&store, CutKind::kDelta, cut, &rows);
  const auto sink = [](const RowColumns&) { return Status::Ok(); };
  int64_t ignored;
  for (const int64_t unknown : {int64_t{-1}, cut - 2, cut + 1}) {
    EXPECT_STATUS(store.Cut(CutKind::kDelta, unknown, sink, &ignored), StatusCode::kInvalidArgument,
                  "test-group", "a delta must be since " + std::to_string(cut),
                  "but got " + std::to_string(unknown), "write a base");
  }
  Update(&store, Batch{{1}}, 1, -1, 1);
  rows.clear();
  cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  EXPECT_EQ(rows.size(), size_t{10});
  Update(&store, Batch{{2}}, 1, -1, 2);
  int64_t records;
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 1);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(LoadsOntoAnyNumberOfShardsTogetherEqualTheSource) {
  RowStoreConfig config = MakeConfig(3, 2, OptimizerKind::kFtrl);
  config.optimizer.initial_accumulator = 0.1f;
  RowStore source(config);
  const Batch batch{Range(-50, 3000), {kMin, -1, kMax}};
  Lookup(&source, batch);
  Update(&source, batch, 0.5f, 0.1f, 7);
  int64_t cut;
  const std::vector<RowColumns> base = RecordsOf(&source, CutKind::kBase, -1, &cut);
  std::vector<int64_t> removed = Range(0, 200);
  source.Remove(0, removed.data(), 200);
  Lookup(&source, Batch{Range(100, 120), {}});
  Update(&source, Batch{Range(1000, 1100), {-1}}, 0.25f, 0.1f, 8);
  const std::vector<RowColumns> delta = RecordsOf(&source, CutKind::kDelta, cut, &cut);
  const Rows expected = BaseOf(&source);
  for (const int num_shards : {1, 2, 3, 5}) {
    Rows all;
    int64_t taken = 0;
    for (int shard = 0; shard < num_shards; ++shard) {
      RowStore store(config);
      for (const auto* batches : {&base, &delta}) {
        for (const RowColumns& columns : *batches) {
          taken += store.Load(columns, {0, 1}, shard, num_shards, true, SerialFor);
        }
      }
      for (auto& row : BaseOf(&store)) {
        const uint64_t hash =
            RowHash(TableSalt(config.tables[row.first.first].name), row.first.second);
        EXPECT_EQ(ShardOf(hash, num_shards), shard);
        all.insert(row);
      }
    }
    EXPECT_TRUE(all == expected);
    int64_t records = 0;
    for (const auto* batches : {&base, &delta}) {
      for (const RowColumns& columns : *batches) records += columns.num_rows;
    }
    EXPECT_EQ(taken, records);
  }
}

TEST(LoadMapsTablesAndMayLeaveSlotsAlone) {
  RowStoreConfig config = MakeConfig(2, 2, OptimizerKind::kAdagrad);
  config.optimizer.initial_accumulator = 0.5f;
  RowStore source(config), store(config);
  Lookup(&source, Batch{{1, 2}, {3}});
  Update(&source, Batch{{1, 2}, {3}}, 1, 0.5f, 4);
  int64_t cut;
  const std::vector<RowColumns> base = RecordsOf(&source, CutKind::kBase, -1, &cut);
  EXPECT_EQ(store.Load(base.at(0), {1, -1}, 0, 1, false, SerialFor), 2);
  const Rows from = BaseOf(&source), to = BaseOf(&store);
  EXPECT_EQ(to.size(), size_t{2});
  for (const int64_t id : {1, 2}) {
    Record expected = from.at({0, id});
    EXPECT_EQ(expected.floats[2], 1.5f);
    expected.floats[2] = expected.floats[3] = 0.5f;
    EXPECT_TRUE(to.at({1, id}) == expected);
  }
}

TEST(LoadsListNothingForTheNextCut) {
  // A reader that follows deltas forever must not collect a list of their removals.
  RowStore source(MakeConfig(1, 1)), store(MakeConfig(1, 1));
  Lookup(&source, Batch{Range(0, 5000)});
  int64_t cut;
  for (const RowColumns& columns : RecordsOf(&source, CutKind::kBase, -1, &cut)) {
    store.Load(columns, {0}, 0, 1, true, SerialFor);
  }
  const std::vector<int64_t> ids = Range(0, 4000);
  source.Remove(0, ids.data(), 4000);
  for (const RowColumns& columns : RecordsOf(&source, CutKind::kDelta, cut, &cut)) {
    store.Load(columns, {0}, 0, 1, true, SerialFor);
  }
  EXPECT_EQ(NumRows(store, 0), 1000);
  Rows rows;
  int64_t records;
  CutOnto(&store, CutKind::kDelta, -1, &rows, &records);
  EXPECT_EQ(records, 0);
}

TEST(MarkCleanForgetsTouchesAndClearForgetsRows) {
  RowStore store(MakeConfig(1, 2));
  Lookup(&store, Batch{Range(0, 100), Range(0, 5)});
  const int64_t one[] = {1};
  store.Remove(0, one, 1);
  const int64_t clean = store.MarkClean();
  Rows rows;
  int64_t records;
  const int64_t cut = CutOnto(&store, CutKind::kDelta, clean, &rows, &records);
  EXPECT_EQ(records, 0);
  Update(&store, Batch{{2}, {}}, 1, -1, 1);
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 1);
  store.Clear();
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(Lookup(&store, Batch{{2}, {}}, false), std::vector<float>{0});
  EXPECT_EQ(BaseOf(&store).size(), size_t{0});
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
