// Tests rows that come from disk and do not change: they go back to their records there. And
// deltas, which read the disk in its order.
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/store/row_tier.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using testing::TemporaryDirectory;

constexpr int kDim = 48;
constexpr int64_t kRows = 6000;  // of which 1280 fit the chunks that stripes begin with

// Rows of which few are in memory, and the same rows without a disk.
struct Stores {
  explicit Stores(int64_t rows = kRows, int64_t many_rows = 1 << 20, float min_norm = 0) {
    RowStoreConfig config = MakeConfig(kDim, 1, OptimizerKind::kAdagrad);
    config.tables[0].eviction.min_norm = min_norm;
    plain = std::make_unique<RowStore>(config);
    TierConfig tier = SmallTier(directory.Path(""));
    tier.many_rows = many_rows;
    config.tier_memory = std::make_shared<TierMemory>(tier);
    tiered = std::make_unique<RowStore>(config);
    for (int64_t id = 0; id < rows; id += 1000) Step(Batch{Range(id, id + 1000)});
  }

  void Step(const Batch& batch) {
    ++step;
    EXPECT_TRUE(Lookup(plain.get(), batch) == Lookup(tiered.get(), batch));
    for (RowStore* store : {plain.get(), tiered.get()}) {
      Update(store, batch, static_cast<float>(step), 0.1f, step);
    }
    EXPECT_OK(tiered->failure());
  }

  void Read(const Batch& batch) {
    EXPECT_TRUE(Lookup(plain.get(), batch, false) == Lookup(tiered.get(), batch, false));
  }

  void ExpectSame() {
    EXPECT_OK(tiered->failure());
    EXPECT_TRUE(BaseOf(plain.get()) == BaseOf(tiered.get()));
  }

  SpillLog::Stats log() const { return tiered->tier()->stats().log; }
  int64_t on_disk() const { return tiered->tier()->stats().rows_on_disk[0]; }

  TemporaryDirectory directory;
  std::unique_ptr<RowStore> plain, tiered;
  uint32_t step = 0;
};

Batch SomeOf(std::mt19937_64* random, size_t count, int64_t range) {
  std::set<int64_t> ids;
  while (ids.size() < count) {
    ids.insert(static_cast<int64_t>((*random)() % static_cast<uint64_t>(range)));
  }
  return Batch{std::vector<int64_t>(ids.begin(), ids.end())};
}

TEST(RowsThatAreOnlyReadAreWrittenOnce) {
  Stores stores;
  std::mt19937_64 random(1);
  const SpillLog::Stats before = stores.log();
  const int64_t in_memory = kRows - stores.on_disk();
  for (int i = 0; i < 100; ++i) stores.Read(SomeOf(&random, 300, kRows));
  const SpillLog::Stats after = stores.log();
  EXPECT_TRUE(after.read - before.read > 15000);
  // Those that had no record yet. Each row that was read pushed one out: it was a record before.
  EXPECT_TRUE(after.appended - before.appended <= in_memory);
  EXPECT_EQ(after.moved, before.moved);
  for (int i = 0; i < 20; ++i) stores.Read(Batch{Range(0, kRows)});
  const int64_t all = stores.log().appended;
  for (int i = 0; i < 20; ++i) stores.Read(SomeOf(&random, 300, kRows));
  EXPECT_TRUE(stores.log().appended - all < 200);  // rows that nothing has pushed out so far
  EXPECT_EQ(stores.log().live - stores.log().spare, stores.on_disk());
  stores.ExpectSame();
}

TEST(ARowThatChangesLosesItsRecord) {
  Stores stores;
  std::mt19937_64 random(2);
  for (int i = 0; i < 60; ++i) {
    stores.Read(SomeOf(&random, 300, kRows));
    EXPECT_TRUE(stores.log().spare > 0);
    if (i % 3 == 0) stores.Step(SomeOf(&random, 100, kRows));
    if (i % 7 == 0) {
      const std::vector<int64_t> gone = SomeOf(&random, 50, kRows).ids;
      for (RowStore* store : {stores.plain.get(), stores.tiered.get()}) {
        store->Remove(0, gone.data(), static_cast<int64_t>(gone.size()));
      }
    }
  }
  stores.ExpectSame();
  stores.Step(Batch{Range(0, kRows)});
  EXPECT_EQ(stores.log().spare, 0);
  stores.ExpectSame();
  for (RowStore* store : {stores.plain.get(), stores.tiered.get()}) store->Clear();
  EXPECT_EQ(stores.log().live, 0);
  EXPECT_EQ(stores.log().spare, 0);
}

TEST(ARowThatIsLoadedAgainLosesItsRecord) {
  for (const bool optimizer_slots : {true, false}) {
    Stores stores;
    std::mt19937_64 random(3);
    stores.Read(SomeOf(&random, 600, kRows));
    EXPECT_TRUE(stores.log().spare > 0);
    RowStore from(MakeConfig(kDim, 1, OptimizerKind::kAdagrad));
    Lookup(&from, Batch{Range(0, kRows)});
    Update(&from, Batch{Range(0, kRows)}, 3, 0.5f, 9);
    int64_t cut;
    for (const RowColumns& columns : RecordsOf(&from, CutKind::kBase, -1, &cut)) {
      for (RowStore* store : {stores.plain.get(), stores.tiered.get()}) {
        store->Load(columns, {0}, 0, 1, optimizer_slots, SerialFor);
      }
    }
    stores.Read(Batch{Range(0, kRows)});
    stores.ExpectSame();
  }
}

TEST(CompactionDropsSpareRecordsAndTheirRowsStay) {
  Stores stores;
  std::mt19937_64 random(4);
  for (int i = 0; i < 60; ++i) {
    // Ids above are only read, so segments have spare records beside dead ones.
    stores.Step(SomeOf(&random, 200, kRows / 2));
    Batch read = SomeOf(&random, 200, kRows / 2);
    for (int64_t& id : read.ids) id += kRows / 2;
    stores.Read(read);
  }
  EXPECT_TRUE(stores.log().moved > 0);
  stores.ExpectSame();
  stores.Read(Batch{Range(0, kRows)});
  stores.ExpectSame();
}

TEST(ASmallNormIsKnownOfARowThatWentBack) {
  Stores stores(kRows, 1 << 20, /*min_norm=*/0.5f);
  std::mt19937_64 random(5);
  for (int i = 0; i < 30; ++i) {
    stores.Read(SomeOf(&random, 300, kRows));
    if (i % 10 == 0) stores.Step(SomeOf(&random, 300, kRows));
  }
  for (RowStore* store : {stores.plain.get(), stores.tiered.get()}) {
    store->Sweep([] { return true; });
  }
  EXPECT_TRUE(stores.tiered->Evicted(0) == stores.plain->Evicted(0));
  EXPECT_TRUE(stores.tiered->Ids(0) == stores.plain->Ids(0));
}

// While it lives no segment can be reserved and no buffer written.
class FullDisk {
 public:
  FullDisk() {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit_);
    rlimit least = limit_;
    least.rlim_cur = 1024;
    setrlimit(RLIMIT_FSIZE, &least);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &limit_); }

 private:
  rlimit limit_{};
};

TEST(OnAFullDiskRowsThatNeedNoPlaceGoFirst) {
  Stores stores;
  std::mt19937_64 random(6);
  for (int i = 0; i < 30; ++i) stores.Read(SomeOf(&random, 300, kRows));
  const int64_t spare = stores.log().spare;
  EXPECT_TRUE(spare > 1000);
  const FullDisk full;
  for (int64_t id = kRows; stores.log().full == 0; id += 10) {
    stores.Step(Batch{Range(id, id + 10)});  // fills the segment
  }
  for (int64_t id = 2 * kRows; id < 2 * kRows + spare / 4; id += 10) {
    stores.Step(Batch{Range(id, id + 10)});
  }
  EXPECT_EQ(stores.tiered->tier()->stats().evicted, 0);
  EXPECT_TRUE(stores.log().full > 0);
  stores.ExpectSame();
}

TEST(DeltasReadTheDiskInItsOrder) {
  constexpr int64_t kMany = 60000;
  Stores stores(kMany, 1), one_by_one(kMany);
  std::mt19937_64 random(7);
  Rows rows, others;
  int64_t cut = CutOnto(stores.tiered.get(), CutKind::kBase, -1, &rows);
  int64_t other_cut = CutOnto(one_by_one.tiered.get(), CutKind::kBase, -1, &others);
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 20; ++k) {
      const Batch batch = SomeOf(&random, 1000, kMany);
      stores.Step(batch);
      one_by_one.Step(batch);
    }
    const int64_t before = stores.log().disk_reads, other = one_by_one.log().disk_reads;
    cut = CutOnto(stores.tiered.get(), CutKind::kDelta, cut, &rows);
    other_cut = CutOnto(one_by_one.tiered.get(), CutKind::kDelta, other_cut, &others);
    const int64_t reads = stores.log().disk_reads - before;
    const int64_t others_reads = one_by_one.log().disk_reads - other;
    EXPECT_TRUE(rows == BaseOf(stores.plain.get()));
    EXPECT_TRUE(rows == others);
    EXPECT_TRUE(others_reads > 2000);  // few in each slice lie close
    EXPECT_TRUE(reads < others_reads / 10);
    std::printf("a delta: %ld reads of the disk, %ld in the store's order\n",
                static_cast<long>(reads), static_cast<long>(others_reads));
  }
}

// Rows change, come, go, and move between memory and disk while they are copied.
TEST(ADeltaBesideStepsIsBroughtUpToDateByTheNextOne) {
  Stores stores(20000, 1);
  std::mt19937_64 random(8);
  Rows rows;
  int64_t cut = CutOnto(stores.tiered.get(), CutKind::kBase, -1, &rows);
  for (int k = 0; k < 20; ++k) stores.Step(SomeOf(&random, 800, 20000));
  int batches = 0;
  const RowSink train = [&](const RowColumns& columns) {
    Apply(columns, kDim, &rows);
    ++batches;
    const std::vector<int64_t> gone = SomeOf(&random, 40, 20000).ids;
    for (RowStore* store : {stores.plain.get(), stores.tiered.get()}) {
      store->Remove(0, gone.data(), static_cast<int64_t>(gone.size()));
    }
    stores.Step(SomeOf(&random, 900, 22000));
    return Status::Ok();
  };
  EXPECT_OK(stores.tiered->Cut(CutKind::kDelta, cut, train, &cut));
  EXPECT_TRUE(batches > 1);
  CutOnto(stores.tiered.get(), CutKind::kDelta, cut, &rows);
  EXPECT_TRUE(rows == BaseOf(stores.plain.get()));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
