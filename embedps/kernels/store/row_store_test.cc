#include "embedps/kernels/store/row_store.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// A ParallelFor with one range per thread, so neighboring ranges run at the same time.
void ThreadsFor(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kThreads = 3;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) {
    const int64_t begin = n * i / kThreads, end = n * (i + 1) / kThreads;
    if (begin < end) threads.emplace_back([&work, begin, end] { work(begin, end); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(LookupCreatesRowsOnlyWhenAsked) {
  RowStoreConfig config = MakeConfig(2, 2);
  config.tables[0].initializer.low = 3;
  config.tables[1].initializer.low = 4;
  RowStore store(config);
  const Batch batch{{kMin, -1, 0, kMax}, {-1, 7}};
  EXPECT_EQ(Lookup(&store, batch, false), std::vector<float>(12, 0.0f));
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{0, 0}));
  const std::vector<float> expected{3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4};
  EXPECT_EQ(Lookup(&store, batch), expected);
  EXPECT_EQ(Lookup(&store, batch, false), expected);
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(Lookup(&store, Batch{{}, {}}), std::vector<float>{});
}

TEST(UpdatesPassOverAbsentRows) {
  RowStore store(MakeConfig(2, 1));
  Lookup(&store, Batch{{1, 2}});
  Update(&store, Batch{{2, 3, 4}}, 1, -1, 9);
  EXPECT_EQ(store.Stats().skipped_updates, 2);
  const Rows expected{{{0, 1}, {{0, 0}, 0, 0}}, {{0, 2}, {{1, 1}, 9, 1}}};
  EXPECT_TRUE(BaseOf(&store) == expected);
}

TEST(FullTableKeepsNoMore) {
  RowStoreConfig config = MakeConfig(1, 2);
  config.tables[0].max_rows = 10;
  RowStore store(config);
  Lookup(&store, Batch{Range(0, 30), Range(0, 30)});
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{10, 30}));
  EXPECT_EQ(store.Stats().rejected_inserts, 20);
  // Removed rows make room.
  std::vector<int64_t> kept;
  for (const auto& row : BaseOf(&store)) {
    if (row.first.first == 0) kept.push_back(row.first.second);
  }
  EXPECT_EQ(kept.size(), size_t{10});
  EXPECT_EQ(store.Remove(0, kept.data(), 3), 3);
  Lookup(&store, Batch{Range(100, 110), {}});
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{10, 30}));
}

TEST(AbsentRowReadsAsItsTableDeclaresInTrainingAndInScoring) {
  RowStoreConfig config = MakeConfig(1, 2);
  for (TableConfig& table : config.tables) {
    table.max_rows = 1;
    table.initializer.low = 5;
  }
  config.tables[1].absent_reads_initial = true;
  RowStore store(config);
  Lookup(&store, Batch{{1}, {1}});
  for (const bool insert : {true, false}) {
    const std::vector<float> found = Lookup(&store, Batch{{1, 2}, {1, 2}}, insert);
    EXPECT_EQ(found, (std::vector<float>{5, 0, 5, 5}));
  }
}

TEST(CapacityHoldsUnderConcurrentInserts) {
  RowStoreConfig config = MakeConfig(1, 1);
  config.tables[0].max_rows = 500;
  RowStore store(config);
  std::vector<std::thread> threads;
  for (int64_t k = 0; k < 4; ++k) {
    threads.emplace_back([&store, k] {
      for (int64_t i = 0; i < 40; ++i) {
        Lookup(&store, Batch{Range(k * 2000 + i * 50, k * 2000 + i * 50 + 50)});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(NumRows(store, 0), 500);
  EXPECT_EQ(BaseOf(&store).size(), size_t{500});
  EXPECT_EQ(store.Stats().rejected_inserts, 4 * 40 * 50 - 500);
}

TEST(IndexEqualsAMapUnderGrowthAndDeletion) {
  RowStore store(MakeConfig(1, 1));
  std::unordered_map<int64_t, uint32_t> model;  // id to updates
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    // Phases of growth and of shrinkage, over dense, distant and extreme ids.
    const bool shrinking = (round / 50) % 2 == 1;
    std::set<int64_t> ids;
    for (int i = 0; i < 200; ++i) {
      const int64_t small = static_cast<int64_t>(random() % 20000);
      const int64_t id = i % 3 == 0   ? small
                         : i % 3 == 1 ? kMin + small
                                      : static_cast<int64_t>(Mix64(small));
      ids.insert(i == 0 ? kMax : id);
    }
    const std::vector<int64_t> list(ids.begin(), ids.end());
    const Batch batch{list};
    if (random() % 4 < (shrinking ? 3u : 1u)) {
      int64_t there = 0;
      for (const int64_t id : list) there += static_cast<int64_t>(model.erase(id));
      EXPECT_EQ(store.Remove(0, list.data(), static_cast<int64_t>(list.size())), there);
    } else {
      const std::vector<float> found = Lookup(&store, batch);
      for (size_t i = 0; i < list.size(); ++i) {
        const auto at = model.find(list[i]);
        EXPECT_EQ(found[i], at == model.end() ? 0.0f : static_cast<float>(at->second));
      }
      Update(&store, batch, 1, -1, round);
      for (const int64_t id : list) ++model[id];
    }
    EXPECT_EQ(NumRows(store, 0), static_cast<int64_t>(model.size()));
  }
  const Rows rows = BaseOf(&store);
  EXPECT_EQ(rows.size(), model.size());
  for (const auto& [id, updates] : model) {
    const auto at = rows.find({0, id});
    EXPECT_TRUE(at != rows.end() && at->second.frequency == updates &&
                at->second.floats[0] == static_cast<float>(updates));
  }
}

TEST(ParallelStepsEqualSerialOnes) {
  RowStoreConfig config = MakeConfig(3, 3, OptimizerKind::kLazyAdam);
  config.optimizer.beta1 = 0.9f;
  config.optimizer.beta2 = 0.99f;
  config.optimizer.epsilon = 1e-7f;
  for (TableConfig& table : config.tables) {
    table.initializer = {InitializerConfig::Kind::kUniform, -1, 1};
  }
  RowStore serial(config), parallel(config);
  for (int step = 1; step < 5; ++step) {
    const Batch batch{Range(-1, 700), {}, Range(step, 50 * step)};
    const size_t n = batch.ids.size() * 3;
    std::vector<float> a(n), b(n), gradients(n);
    for (size_t i = 0; i < n; ++i) gradients[i] = std::sin(static_cast<float>(i + step));
    EXPECT_OK(serial.Lookup(batch.view(), true, SerialFor, a.data()));
    EXPECT_OK(parallel.Lookup(batch.view(), true, ThreadsFor, b.data()));
    EXPECT_TRUE(a == b);
    serial.Update(batch.view(), gradients.data(), 0.1f, step, SerialFor);
    parallel.Update(batch.view(), gradients.data(), 0.1f, step, ThreadsFor);
  }
  EXPECT_TRUE(BaseOf(&serial) == BaseOf(&parallel));
}

// A row that a training lookup finds is read by itself.
TEST(ReadsOfManyStripesEqualReadsOfEachRow) {
  constexpr int kDim = 3, kTables = 5;
  for (const bool compact : {false, true}) {
    RowStoreConfig config = MakeConfig(kDim, kTables);
    config.compact = compact;
    config.tables[2].initializer.low = 9;
    config.tables[2].absent_reads_initial = true;
    RowStore store(config);
    std::mt19937_64 random(7);
    for (const int per_table : {0, 1, 6, 7, 13, 600}) {
      Batch batch{{}, {}, {}, {}, {}}, single = batch;
      std::vector<float> expected;
      batch.splits.assign(1, 0);
      for (int t = 0; t < kTables; ++t) {
        for (int i = 0; i < per_table; ++i) {
          batch.ids.push_back(static_cast<int64_t>(random()));
          single.ids.assign(1, batch.ids.back());
          for (int k = 0; k <= kTables; ++k) single.splits[k] = k > t;
          std::vector<float> row(kDim, t == 2 ? 9.0f : 0.0f);
          if (i % 3 != 1) {
            Lookup(&store, single);
            Update(&store, single, static_cast<float>(i), -1, 1);
            row = Lookup(&store, single);
          }
          expected.insert(expected.end(), row.begin(), row.end());
        }
        batch.splits.push_back(static_cast<int32_t>(batch.ids.size()));
      }
      for (const bool threads : {false, true}) {
        std::vector<float> rows(expected.size());
        const ParallelFor parallel = threads ? ParallelFor(ThreadsFor) : ParallelFor(SerialFor);
        EXPECT_OK(store.Lookup(batch.view(), false, parallel, rows.data()));
        EXPECT_EQ(rows, expected);
      }
    }
  }
}

TEST(RowsUpdatedOftenAreListedOnce) {
  RowStore store(MakeConfig(2, 1));
  const Batch batch{Range(0, 500)};
  Lookup(&store, batch);
  const int64_t memory = store.Stats().memory_bytes;
  for (int i = 1; i < 200; ++i) Update(&store, batch, 1, -1, i);
  EXPECT_EQ(store.Stats().memory_bytes, memory);
}

TEST(LookupsAndUpdatesKeepAStoreBusyAndNothingElse) {
  RowStore store(MakeConfig(2, 1));
  EXPECT_FALSE(store.IsBusy());
  BaseOf(&store);
  store.Remove(0, std::vector<int64_t>{1}.data(), 1);
  EXPECT_FALSE(store.IsBusy());
  Update(&store, Batch{{1}}, 1, 1, 1);
  EXPECT_TRUE(store.IsBusy());
  RowStore other(MakeConfig(2, 1));
  Lookup(&other, Batch{{1}}, false);
  EXPECT_TRUE(other.IsBusy());
}

TEST(EvictsByLastStepAndFrequency) {
  RowStore store(MakeConfig(1, 2));
  const Batch all{Range(0, 4000), Range(0, 10)};
  Lookup(&store, all);
  Update(&store, all, 1, -1, 10);
  Update(&store, Batch{Range(0, 1000), {}}, 1, -1, 11);     // twice, late
  Update(&store, Batch{Range(1000, 2000), {}}, 1, -1, 10);  // twice, early
  Rows rows;
  const int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  EXPECT_EQ(store.Evict(0, 10, 100), 0);   // none is before step 10
  EXPECT_EQ(store.Evict(0, 11, 2), 2000);  // once only
  EXPECT_EQ(store.Evict(0, 11, 3), 1000);  // twice, before 11
  EXPECT_EQ(store.Evict(0, 4e9, 2), 0);    // the rest have two updates
  EXPECT_EQ(store.Stats().rows, (std::vector<int64_t>{1000, 10}));
  int64_t records;
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 3000);
  EXPECT_TRUE(rows == BaseOf(&store));
}

TEST(UpdateRatesAreSharesOfSteps) {
  RowStore store(MakeConfig(1, 2));
  const Batch ids{{1, 2, 3}, {1}};
  const auto rates = [&](RowStore* of) {
    std::vector<float> found(4);
    of->UpdateRates(ids.view(), SerialFor, found.data());
    return found;
  };
  EXPECT_EQ(rates(&store), std::vector<float>(4, 0.5f));  // nothing is known
  EXPECT_EQ(NumRows(store, 0), 0);                        // and no row is made
  Lookup(&store, ids);
  for (uint32_t step = 0; step < 8; ++step) {
    Update(&store, Batch{{1}, step % 2 ? std::vector<int64_t>{1} : std::vector<int64_t>{}}, 1, 0.1f,
           step);
  }
  EXPECT_EQ(rates(&store), (std::vector<float>{0.9f, 0.1f, 0.1f, 0.5f}));
  Update(&store, Batch{{2}, {}}, 1, 0.1f, 3);  // an older step, late
  EXPECT_EQ(rates(&store), (std::vector<float>{0.9f, 0.2f, 0.1f, 0.5f}));

  RowStore restored(MakeConfig(1, 2));
  int64_t cut;
  for (const RowColumns& columns : RecordsOf(&store, CutKind::kBase, -1, &cut)) {
    restored.Load(columns, {0, 1}, 0, 1, true, SerialFor);
  }
  EXPECT_EQ(rates(&restored), rates(&store));
  restored.Clear();
  EXPECT_EQ(rates(&restored), std::vector<float>(4, 0.5f));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
