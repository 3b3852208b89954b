// Tests that a scan finds what the rows hold, also while others change them.
#include "embedps/kernels/store/table_scan.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using testing::TemporaryDirectory;

TableScan Scan(const RowStore& store, int table) {
  return store.Scan(table, [] {});
}

TEST(BinsAreExactBelow64AndWithin2PercentAbove) {
  LogBins bins(1);
  for (int bin = 0; bin < LogBins::kNumBins; ++bin) bins.Add(bins.Value(bin));
  for (const int64_t count : bins.counts()) EXPECT_EQ(count, 1);
  EXPECT_EQ(bins.Value(63), 63.0);
  for (const double value : {64.0, 65.0, 1000.0, 123456.0, double{kMaxFrequency}}) {
    LogBins one(1);
    one.Add(value);
    int bin = 0;
    while (one.counts()[bin] == 0) ++bin;
    EXPECT_TRUE(std::abs(one.Value(bin) / value - 1) < 0.02);
  }
}

TEST(ValuesWithoutABinCountInTheLast) {
  LogBins bins(0.5);
  bins.Add(1e300);
  bins.Add(std::numeric_limits<double>::infinity());
  bins.Add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(bins.counts().back(), 3);
}

TEST(AScanCountsRowsUpdatesAndNorms) {
  RowStoreConfig config = MakeConfig(4, 2);
  for (TableConfig& table : config.tables) {
    table.initializer = {InitializerConfig::Kind::kConstant, 1.5, 0};
  }
  RowStore store(config);
  const std::vector<int64_t> ids = Range(0, 3000);
  Lookup(&store, Batch{ids, {7}});
  // Id i is updated i % 5 times, and id 2999 once more. A learning rate of 0 leaves the norms.
  for (uint32_t step = 1; step < 5; ++step) {
    std::vector<int64_t> updated;
    for (const int64_t id : ids) {
      if (id % 5 >= step) updated.push_back(id);
    }
    Update(&store, Batch{updated, {}}, 1, 0, step);
  }
  Update(&store, Batch{{2999}, {}}, 1, 0, 5);
  const TableScan scan = Scan(store, 0);
  EXPECT_EQ(scan.rows, 3000);
  EXPECT_EQ(scan.updates, 3000 * 2 + 1);
  EXPECT_EQ(scan.frequencies.counts()[0], 600);
  EXPECT_EQ(scan.frequencies.counts()[4], 599);
  EXPECT_EQ(scan.frequencies.counts()[5], 1);
  EXPECT_EQ(static_cast<int>(scan.hottest.size()), TableScan::kNumHottest);
  EXPECT_EQ(scan.hottest[0].id, 2999);
  EXPECT_EQ(scan.hottest[1].id, 4);  // of equals, the least id is first
  EXPECT_EQ(scan.hottest[599].id, 2994);
  EXPECT_EQ(scan.hottest[600].id, 3);
  EXPECT_EQ(scan.hottest[600].frequency, 3u);
  int64_t norms = 0;
  for (int bin = 0; bin < LogBins::kNumBins; ++bin) {
    if (scan.norms.counts()[bin] == 0) continue;
    EXPECT_TRUE(std::abs(scan.norms.Value(bin) / 3 - 1) < 0.02);  // 1.5 * sqrt(4)
    norms += scan.norms.counts()[bin];
  }
  EXPECT_TRUE(norms >= 3000 / TableScan::kNormStride);
  EXPECT_EQ(Scan(store, 1).rows, 1);
}

int64_t NumNorms(const TableScan& scan) {
  int64_t norms = 0;
  for (const int64_t count : scan.norms.counts()) norms += count;
  return norms;
}

TEST(AScanTakesFewNormsOfALargeTableOnlyIfRowsAreOnDisk) {
  const TemporaryDirectory directory;
  RowStoreConfig config = MakeConfig(2, 1);
  RowStore plain(config);
  TierConfig tier;
  tier.max_memory_bytes = 1;
  tier.directory = directory.Path("");
  config.tier_memory = std::make_shared<TierMemory>(tier);
  RowStore tiered(config);
  for (const int64_t rows : {60'000, 200'000, 700'000}) {
    for (RowStore* store : {&plain, &tiered}) Lookup(store, Batch{Range(0, rows)});
    EXPECT_TRUE(NumNorms(Scan(plain, 0)) >= rows / TableScan::kNormStride);
    const TableScan scan = Scan(tiered, 0);
    EXPECT_EQ(scan.rows, rows);
    EXPECT_TRUE(NumNorms(scan) > TableScan::kMostNorms / 2);
    EXPECT_TRUE(NumNorms(scan) <= TableScan::kMostNorms + kStripes);  // each stripe's first row
  }
}

TEST(RemovedRowsAreNotScanned) {
  RowStore store(MakeConfig(2, 1));
  Lookup(&store, Batch{Range(0, 100)});
  const std::vector<int64_t> gone = Range(0, 60);
  store.Remove(0, gone.data(), 60);
  const TableScan scan = Scan(store, 0);
  EXPECT_EQ(scan.rows, 40);
  EXPECT_EQ(scan.hottest[0].id, 60);
}

TEST(TrainingLookupsAreCounted) {
  RowStore store(MakeConfig(2, 2));
  Lookup(&store, Batch{{1, 2, 3}, {}});
  Lookup(&store, Batch{{1}, {5}});
  Lookup(&store, Batch{{1, 2}, {5}}, /*insert=*/false);  // of an evaluation
  EXPECT_EQ(store.lookup_counts().batches(), 2);
  EXPECT_EQ(store.lookup_counts().ids(0), 4);
  EXPECT_EQ(store.lookup_counts().ids(1), 1);
}

TEST(IdsRefusedByAFullTableAreCounted) {
  RowStoreConfig config = MakeConfig(2, 2);
  config.tables[1].max_rows = 2;
  RowStore store(config);
  Lookup(&store, Batch{{}, {1, 2, 3}});
  Lookup(&store, Batch{{}, {4}});
  const std::vector<AdmissionStats> stats = store.StatsOfAdmission();
  EXPECT_EQ(stats[0].refused, 0);
  EXPECT_EQ(stats[1].refused, 2);
}

TEST(AScanRunsBesideTrainingAndEviction) {
  RowStoreConfig config = MakeConfig(4, 1);
  config.tables[0].eviction.max_rows = 2000;
  RowStore store(config);
  std::atomic<bool> done{false};
  std::thread training([&] {
    for (uint32_t step = 1; step <= 200; ++step) {
      const Batch batch{Range(step * 50, step * 50 + 200)};
      Lookup(&store, batch);
      Update(&store, batch, 1, 0.1f, step);
    }
    done = true;
  });
  do {
    const TableScan scan = Scan(store, 0);
    int64_t counted = 0;
    for (const int64_t rows : scan.frequencies.counts()) counted += rows;
    EXPECT_EQ(counted, scan.rows);
  } while (!done);
  training.join();
  EXPECT_EQ(Scan(store, 0).rows, 2000);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
