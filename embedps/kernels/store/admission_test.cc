#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr float kInitial = 5;

RowStoreConfig CountingConfig(uint32_t min_count, int num_tables = 1) {
  RowStoreConfig config = MakeConfig(1, num_tables);
  for (TableConfig& table : config.tables) {
    table.initializer.low = kInitial;
    table.admission.kind = AdmissionConfig::Kind::kMinCount;
    table.admission.min_count = min_count;
  }
  return config;
}

// Looks a batch up, admits, and applies a gradient of -1 with rate 1. Returns what was read.
std::vector<float> Step(RowStore* store, const Batch& batch, const std::vector<int32_t>& examples,
                        uint32_t step = 0) {
  std::vector<float> rows(batch.ids.size() * store->config().dim);
  std::vector<uint8_t> absent(batch.ids.size());
  const ShownIds shown{examples.data(), step, absent.data()};
  EXPECT_OK(store->LookupShown(batch.view(), shown, SerialFor, rows.data()));
  EXPECT_OK(store->Admit(batch.view(), shown, SerialFor));
  Update(store, batch, -1, 1, step);
  return rows;
}

using Counts = std::map<std::pair<int, int64_t>, uint32_t>;

void ApplyCounters(const CounterColumns& columns, Counts* counts) {
  for (int64_t i = 0; i < columns.num_records; ++i) {
    const std::pair<int, int64_t> key(columns.table[i], columns.id[i]);
    if (columns.removed[i]) {
      counts->erase(key);
    } else {
      (*counts)[key] = columns.count[i];
    }
  }
}

int64_t CutBoth(RowStore* store, CutKind kind, int64_t since, Rows* rows, Counts* counts) {
  int64_t cut = -100;
  const CounterSink counters = [counts](const CounterColumns& columns) {
    ApplyCounters(columns, counts);
    return Status::Ok();
  };
  EXPECT_OK(store->Cut(
      kind, since,
      [&](const RowColumns& columns) {
        Apply(columns, store->config().dim, rows);
        return Status::Ok();
      },
      &cut, &counters));
  return cut;
}

Counts CountsOf(const RowStore& store) {
  Counts counts;
  EXPECT_OK(store.CopyCounters([&](const CounterColumns& columns) {
    ApplyCounters(columns, &counts);
    return Status::Ok();
  }));
  return counts;
}

TEST(ExampleThatReachesTheCountAdmitsAndTrainsItsRow) {
  RowStore store(CountingConfig(3));
  EXPECT_EQ(Step(&store, Batch{{1, 2}}, {2, 3}), (std::vector<float>{0, kInitial}));
  EXPECT_EQ(store.Stats().skipped_updates, 1);
  EXPECT_EQ(Step(&store, Batch{{1, 2}}, {1, 1}), (std::vector<float>{kInitial, kInitial + 1}));
  const Rows expected{{{0, 1}, {{kInitial + 1}, 0, 1}}, {{0, 2}, {{kInitial + 2}, 0, 2}}};
  EXPECT_TRUE(BaseOf(&store) == expected);
  const AdmissionStats stats = store.StatsOfAdmission()[0];
  EXPECT_EQ(stats.admitted, 2);
  EXPECT_EQ(stats.refused, 1);
  EXPECT_EQ(stats.counters, 0);
}

TEST(LookupThatIsNotFollowedByAnUpdateCountsNothing) {
  RowStore store(CountingConfig(2));
  const Batch batch{{1}};
  const std::vector<int32_t> examples = {1};
  std::vector<float> row(1);
  std::vector<uint8_t> absent(1);
  for (int attempt = 0; attempt < 5; ++attempt) {
    const ShownIds shown{examples.data(), 0, absent.data()};
    EXPECT_OK(store.LookupShown(batch.view(), shown, SerialFor, row.data()));
  }
  EXPECT_TRUE(CountsOf(store).empty());
  EXPECT_EQ(NumRows(store, 0), 0);
}

TEST(UnadmittedIdReadsTheSameInTrainingAndScoring) {
  for (const bool initial : {false, true}) {
    RowStoreConfig config = CountingConfig(2);
    config.tables[0].absent_reads_initial = initial;
    RowStore store(config);
    const std::vector<float> trained = Step(&store, Batch{{1}}, {1});
    EXPECT_EQ(trained, Lookup(&store, Batch{{1}}, /*insert=*/false));
    EXPECT_EQ(trained[0], initial ? kInitial : 0);
  }
}

TEST(IdBeyondTheCapacityReadsTheSameInTrainingAndScoring) {
  RowStoreConfig config = CountingConfig(2);
  config.tables[0].max_rows = 1;
  RowStore store(config);
  Step(&store, Batch{{1}}, {2});
  EXPECT_EQ(Step(&store, Batch{{2}}, {2}), std::vector<float>{0});
  EXPECT_EQ(Lookup(&store, Batch{{2}}, /*insert=*/false), std::vector<float>{0});
  EXPECT_EQ(store.Evict(0, 100, 100), 1);
  EXPECT_EQ(Step(&store, Batch{{2}}, {2}), std::vector<float>{kInitial});
}

TEST(ReturningIdIsCountedAnew) {
  RowStore store(CountingConfig(2));
  Step(&store, Batch{{1}}, {2});
  const int64_t id = 1;
  EXPECT_EQ(store.Remove(0, &id, 1), 1);
  Step(&store, Batch{{1}}, {1});
  EXPECT_EQ(NumRows(store, 0), 0);
  EXPECT_EQ(store.Remove(0, &id, 1), 0);  // forgets the counter
  Step(&store, Batch{{1}}, {1});
  EXPECT_EQ(NumRows(store, 0), 0);
  Step(&store, Batch{{1}}, {1});
  EXPECT_EQ(NumRows(store, 0), 1);
  EXPECT_EQ(store.Evict(0, 100, 100), 1);
  Step(&store, Batch{{1}}, {1});
  EXPECT_EQ(NumRows(store, 0), 0);
}

TEST(FullTableKeepsTheCounterOfAnIdThatItHasNoRoomFor) {
  RowStoreConfig config = CountingConfig(2);
  config.tables[0].max_rows = 1;
  RowStore store(config);
  Step(&store, Batch{{1}}, {2});
  Step(&store, Batch{{2}}, {1});
  Step(&store, Batch{{2}}, {1});
  EXPECT_EQ(store.Stats().rejected_inserts, 1);
  EXPECT_TRUE(CountsOf(store) == (Counts{{{0, 2}, 1}}));
  const int64_t id = 1;
  EXPECT_EQ(store.Remove(0, &id, 1), 1);
  Step(&store, Batch{{2}}, {1});
  EXPECT_EQ(NumRows(store, 0), 1);
}

TEST(ChanceIsOfTheStepAndTheExampleAndNothingElse) {
  RowStoreConfig config = MakeConfig(1, 1);
  config.tables[0].admission.kind = AdmissionConfig::Kind::kChance;
  config.tables[0].admission.threshold = uint64_t{1} << 30;  // a quarter
  RowStore store(config);
  const std::vector<int64_t> ids = Range(0, 40000);
  Step(&store, Batch{ids}, std::vector<int32_t>(ids.size(), 1), 7);
  // 5 standard deviations of a binomial.
  EXPECT_TRUE(std::abs(NumRows(store, 0) - 10000) < 433);
  Step(&store, Batch{ids}, std::vector<int32_t>(ids.size(), 1), 7);
  const int64_t after_one = NumRows(store, 0);
  RowStore other(config);
  Step(&other, Batch{ids}, std::vector<int32_t>(ids.size(), 1), 7);
  EXPECT_EQ(NumRows(other, 0), after_one);  // a repeat of the step draws the same
  Step(&other, Batch{ids}, std::vector<int32_t>(ids.size(), 3), 8);
  const double expected = 40000 * (1 - 0.75 * 0.75 * 0.75 * 0.75);
  EXPECT_TRUE(std::abs(static_cast<double>(NumRows(other, 0)) - expected) < 470);
}

TEST(SeededTraceAgreesWithAMapAcrossCutsEvictionsAndRestoresOntoOtherShards) {
  constexpr uint32_t kMinCount = 4;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    int num_shards = 1 + random() % 3;
    const auto make = [&] {
      std::vector<std::unique_ptr<RowStore>> stores;
      for (int s = 0; s < num_shards; ++s) {
        stores.push_back(std::make_unique<RowStore>(CountingConfig(kMinCount, 2)));
      }
      return stores;
    };
    auto stores = make();
    std::vector<int64_t> since(num_shards, -1);
    std::vector<std::pair<std::vector<RowColumns>, std::vector<CounterColumns>>> chain;
    std::map<std::pair<int, int64_t>, uint32_t> counts;  // the twin
    std::set<std::pair<int, int64_t>> live;
    const auto shard_of = [&](int t, int64_t id) {
      return ShardOf(RowHash(TableSalt("t" + std::to_string(t)), id), num_shards);
    };
    bool based = false;
    for (uint32_t step = 0; step < 60; ++step) {
      std::map<int64_t, int32_t> shown[2];
      for (int i = 0; i < 30; ++i) shown[random() % 2][random() % 60] += 1 + random() % 2;
      for (int s = 0; s < num_shards; ++s) {
        Batch batch{{}, {}};
        std::vector<int32_t> examples;
        batch.splits = {0};
        for (int t = 0; t < 2; ++t) {
          for (const auto& [id, n] : shown[t]) {
            if (shard_of(t, id) != s) continue;
            batch.ids.push_back(id);
            examples.push_back(n);
          }
          batch.splits.push_back(static_cast<int32_t>(batch.ids.size()));
        }
        Step(stores[s].get(), batch, examples, step);
      }
      for (int t = 0; t < 2; ++t) {
        for (const auto& [id, n] : shown[t]) {
          if (live.count({t, id})) continue;
          if ((counts[{t, id}] += n) < kMinCount) continue;
          counts.erase({t, id});
          live.insert({t, id});
        }
      }
      if (random() % 4 == 0) {
        const int64_t gone = random() % 60;
        for (auto& store : stores) store->Remove(0, &gone, 1);
        live.erase({0, gone});
        counts.erase({0, gone});
      }
      if (random() % 3 != 0) continue;
      chain.emplace_back();
      const bool base = !based || random() % 5 == 0;
      if (base) chain.erase(chain.begin(), chain.end() - 1);
      based = true;
      for (int s = 0; s < num_shards; ++s) {
        const CounterSink counters = [&](const CounterColumns& columns) {
          chain.back().second.push_back(columns);
          return Status::Ok();
        };
        EXPECT_OK(stores[s]->Cut(
            base ? CutKind::kBase : CutKind::kDelta, since[s],
            [&](const RowColumns& columns) {
              chain.back().first.push_back(columns);
              return Status::Ok();
            },
            &since[s], &counters));
      }
      if (random() % 2 == 0) continue;
      num_shards = 1 + random() % 4;  // restore onto another number of shards
      stores = make();
      since.clear();
      for (int s = 0; s < num_shards; ++s) {
        for (const auto& save : chain) {
          for (const RowColumns& columns : save.first) {
            stores[s]->Load(columns, {0, 1}, s, num_shards, true, SerialFor);
          }
        }
        since.push_back(stores[s]->MarkClean());
        for (const auto& save : chain) {
          for (const CounterColumns& columns : save.second) {
            stores[s]->LoadCounters(columns, {"t0", "t1"}, s, num_shards);
          }
        }
      }
    }
    std::set<std::pair<int, int64_t>> found_live;
    Counts found;
    for (auto& store : stores) {
      for (const auto& row : BaseOf(store.get())) found_live.insert(row.first);
      for (const auto& count : CountsOf(*store)) found.insert(count);
    }
    EXPECT_TRUE(found == counts);
    EXPECT_TRUE(found_live == live);
  }
}

TEST(RowThatACutHasBesideItsCounterWinsAndTheNextDeltaSaysSo) {
  RowStore store(CountingConfig(2));
  Step(&store, Batch{{1}}, {2});
  CounterColumns stale;
  stale.num_records = 1;
  stale.table = {0};
  stale.id = {1};
  stale.count = {1};
  stale.last_step = {0};
  stale.removed = {0};
  const int64_t since = store.MarkClean();
  EXPECT_EQ(store.LoadCounters(stale, {"t0"}, 0, 1), 1);
  EXPECT_TRUE(CountsOf(store).empty());
  Rows rows;
  Counts counts{{{0, 1}, 1}};
  CutBoth(&store, CutKind::kDelta, since, &rows, &counts);
  EXPECT_TRUE(counts.empty());
}

TEST(StepsCutsAndEvictionsRunSideBySide) {
  RowStore store(CountingConfig(3));
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([&store, k] {
      std::mt19937_64 random(k);
      for (uint32_t step = 0; step < 150; ++step) {
        std::set<int64_t> ids;
        while (ids.size() < 100) ids.insert(random() % 3000);
        Step(&store, Batch{{ids.begin(), ids.end()}}, std::vector<int32_t>(100, 1), step);
      }
    });
  }
  std::thread cutter([&] {
    int64_t since = -1;
    while (!done) {
      Rows rows;
      Counts counts;
      since = CutBoth(&store, since < 0 ? CutKind::kBase : CutKind::kDelta, since, &rows, &counts);
      store.Evict(0, 50, 2);
      CountsOf(store);
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  cutter.join();
  const Counts counts = CountsOf(store);
  for (const auto& row : BaseOf(&store)) EXPECT_TRUE(counts.count(row.first) == 0);
  const AdmissionStats stats = store.StatsOfAdmission()[0];
  EXPECT_EQ(static_cast<int64_t>(counts.size()), stats.counters);
}

TEST(CountersAreChargedToTheLimitOfTheServer) {
  RowStoreConfig config = CountingConfig(200);
  const int64_t limit = 4 * TableEviction::LeastBytes(LayoutOf(config), 0);
  config.server_memory = std::make_shared<ServerMemory>(limit);
  {
    RowStore store(config);
    const int64_t least = config.server_memory->charged_bytes();
    EXPECT_EQ(least,
              TableEviction::LeastServerBytes(LayoutOf(config), config.tables[0].admission, 0));
    for (int64_t first = 0; first < 50000; first += 1000) {
      Step(&store, Batch{Range(first, first + 1000)}, std::vector<int32_t>(1000, 1));
      const AdmissionStats stats = store.StatsOfAdmission()[0];
      const int64_t counters =
          CounterBudget::WithHeap(stats.bytes + kStripes * int64_t{sizeof(CounterMap)});
      const int64_t charged = config.server_memory->charged_bytes();
      EXPECT_EQ(charged, least + std::max<int64_t>(0, counters - kLeastCounterBytes));
      EXPECT_TRUE(charged <= limit);
    }
  }
  EXPECT_EQ(config.server_memory->charged_bytes(), 0);
}

TEST(CountersOfAllTablesLeaveSevenEighthsOfTheServersLimitToRows) {
  RowStoreConfig config = CountingConfig(200, 3);
  config.tables[2].admission = {};
  const int64_t limit = 8 << 20;
  config.server_memory = std::make_shared<ServerMemory>(limit);
  RowStore store(config);
  const std::vector<int32_t> once(2000, 1);
  for (int64_t first = 0; first < 100'000; first += 1000) {
    const std::vector<int64_t> ids = Range(first, first + 1000);
    Step(&store, Batch{ids, ids, {}}, once);
  }
  int64_t counters = 0;
  for (int t = 0; t < 2; ++t) counters += store.StatsOfAdmission()[t].bytes;
  EXPECT_TRUE(CounterBudget::WithHeap(counters) <= limit / kCounterParts);
  EXPECT_TRUE(CounterBudget::WithHeap(counters) > limit / kCounterParts * 9 / 10);
  Lookup(&store, Batch{{}, {}, Range(0, 200'000)});
  EXPECT_TRUE(NumRows(store, 2) > 100'000);
  EXPECT_TRUE(config.server_memory->charged_bytes() <= limit);
  EXPECT_TRUE(config.server_memory->charged_bytes() > limit * 9 / 10);
}

TEST(CountersHaveAnEighthOfAByteLimitAndRowsTheRest) {
  RowStoreConfig config = CountingConfig(2);
  TableConfig& table = config.tables[0];
  const int64_t limit = 3 * TableEviction::LeastBytes(LayoutOf(config), table.admission, 0);
  table.eviction.max_bytes = limit;
  RowStore store(config);
  uint32_t step = 0;
  for (int64_t first = 0; first < 200000; first += 1000, ++step) {
    const std::vector<int64_t> ids = Range(first, first + 1000);
    Step(&store, Batch{ids}, std::vector<int32_t>(1000, 1), step << 6);
    if (step % 3 == 0) Step(&store, Batch{ids}, std::vector<int32_t>(1000, 1), step << 6);
    const int64_t counters = store.StatsOfAdmission()[0].bytes;
    EXPECT_TRUE(counters <= limit / 8);
    EXPECT_TRUE(store.Stats().table_bytes[0] <= limit);
  }
  EXPECT_TRUE(store.StatsOfAdmission()[0].bytes > limit / 16);
  EXPECT_TRUE(NumRows(store, 0) > 2000);
  EXPECT_TRUE(store.Evicted(0)[static_cast<int>(EvictionCause::kLimit)] > 0);
  store.Clear();
  const AdmissionStats cleared = store.StatsOfAdmission()[0];
  EXPECT_EQ(cleared.bytes, 0);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
