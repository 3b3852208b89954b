// Tests that rows stay consistent while lookups, updates, removals, cuts and loads run
// concurrently.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

// Every update adds 1 to numbers of the row, which must then equal its frequency: the embedding
// with SGD, the accumulator with Adagrad.
bool IsWhole(const Record& record, int dim, OptimizerKind kind) {
  const bool sgd = kind == OptimizerKind::kSgd;
  for (int i = 0; i < dim; ++i) {
    if (record.floats[i] != (sgd ? static_cast<float>(record.frequency) : 0.0f)) return false;
    if (!sgd && record.floats[dim + i] != static_cast<float>(record.frequency)) return false;
  }
  return (record.frequency == 0) == (record.last_step == 0);
}

struct Traffic {
  std::vector<std::thread> threads;
  std::atomic<int> running{0};

  void Run(std::function<void()> work) {
    ++running;
    threads.emplace_back([this, work = std::move(work)] {
      work();
      --running;
    });
  }
  void Join() {
    for (std::thread& thread : threads) thread.join();
  }
};

std::vector<int64_t> SomeIds(std::mt19937_64* random, int64_t range) {
  std::set<int64_t> ids{-1};
  while (ids.size() < 60) {
    const double u = static_cast<double>((*random)() >> 11) * 0x1p-53;
    ids.insert(static_cast<int64_t>(static_cast<double>(range) * u * u * u));  // hot and cold
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

void ExpectWholeRowsUnderTraffic(OptimizerKind kind) {
  constexpr int kDim = 8;
  constexpr int kRounds = 250;
  RowStore store(MakeConfig(kDim, 2, kind));
  const float learning_rate = kind == OptimizerKind::kSgd ? -1 : 0;
  std::atomic<uint32_t> step{1};
  Traffic traffic;
  for (int k = 0; k < 2; ++k) {
    traffic.Run([&, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < kRounds; ++i) {
        // The range of ids grows, and the index with it.
        const Batch batch{SomeIds(&random, 100 + 40 * i), SomeIds(&random, 100)};
        const std::vector<float> rows = Lookup(&store, batch);
        for (size_t r = 0; r < batch.ids.size(); ++r) {
          for (int d = 1; d < kDim; ++d) EXPECT_EQ(rows[r * kDim + d], rows[r * kDim]);
        }
        Update(&store, batch, 1, learning_rate, step++);
      }
    });
  }
  traffic.Run([&] {
    std::mt19937_64 random(99);
    for (int i = 0; i < kRounds; ++i) {
      const std::vector<int64_t> ids = SomeIds(&random, 100 + 40 * i);
      store.Remove(i % 2, ids.data(), 20);
      if (i % 16 == 0) store.Evict(0, step.load() / 2, 2);
      Lookup(&store, Batch{ids, {}}, false);
      EXPECT_TRUE(store.Stats().memory_bytes > 0);
    }
  });
  // The chain of committed cuts. Every third cut fails, early or late.
  Rows chain;
  int64_t committed = -1, cuts = 0;
  const auto cut_once = [&](CutKind kind_of_cut, bool fails) {
    Rows rows = kind_of_cut == CutKind::kBase ? Rows() : chain;
    int64_t cut = 0, batches = 0;
    const Status status = store.Cut(
        kind_of_cut, committed,
        [&](const RowColumns& columns) {
          if (fails && (cuts % 2 == 0 || ++batches > 1)) return Status::IoError("disk full");
          Rows given;
          Apply(columns, kDim, &given);
          for (const auto& row : given) EXPECT_TRUE(IsWhole(row.second, kDim, kind));
          Apply(columns, kDim, &rows);
          return Status::Ok();
        },
        &cut);
    ++cuts;
    if (!status.ok() || fails) return;
    chain = std::move(rows);
    committed = cut;
  };
  cut_once(CutKind::kBase, false);
  while (traffic.running > 0) {
    cut_once(cuts % 11 == 10 ? CutKind::kBase : CutKind::kDelta, cuts % 3 == 2);
  }
  traffic.Join();
  cut_once(CutKind::kDelta, false);
  const Rows base = BaseOf(&store);
  EXPECT_TRUE(chain == base);
  EXPECT_TRUE(base.size() > 1000);
  EXPECT_EQ(NumRows(store, 0) + NumRows(store, 1), static_cast<int64_t>(base.size()));
}

TEST(SgdRowsStayWholeUnderTraffic) { ExpectWholeRowsUnderTraffic(OptimizerKind::kSgd); }
TEST(AdagradRowsStayWholeUnderTraffic) { ExpectWholeRowsUnderTraffic(OptimizerKind::kAdagrad); }

// EMBEDPS_TRAFFIC_TIMES makes the traffic so many times as long (CONTRIBUTING.md).
int Times() {
  const char* times = std::getenv("EMBEDPS_TRAFFIC_TIMES");
  return times == nullptr ? 1 : std::atoi(times);
}

using Counters = std::map<std::pair<int, int64_t>, std::pair<uint32_t, uint32_t>>;

void ApplyCounters(const CounterColumns& columns, Counters* counters) {
  for (int64_t i = 0; i < columns.num_records; ++i) {
    const std::pair<int, int64_t> key(columns.table[i], columns.id[i]);
    if (columns.removed[i]) {
      counters->erase(key);
    } else {
      (*counters)[key] = {columns.count[i], columns.last_step[i]};
    }
  }
}

// Limits, ages and norms evict beside lookups, updates, cuts that fail, copies, and a growing
// index. With an admission, ids are counted.
void ExpectWholeRowsUnderEviction(const EvictionConfig& eviction,
                                  const AdmissionConfig& admission = {}) {
  constexpr int kDim = 8;
  const int rounds = 200 * Times();
  RowStoreConfig config = MakeConfig(kDim, 2);
  for (TableConfig& table : config.tables) {
    table.eviction = eviction;
    table.admission = admission;
  }
  config.sweeps_itself = true;
  RowStore store(config);
  std::atomic<uint32_t> step{1};
  Traffic traffic;
  for (int k = 0; k < 2; ++k) {
    traffic.Run([&, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < rounds; ++i) {
        const Batch batch{SomeIds(&random, 100 + 100 * i), SomeIds(&random, 100 + 10 * i)};
        std::vector<float> rows(batch.ids.size() * kDim);
        const std::vector<int32_t> examples(batch.ids.size(), 1);
        std::vector<uint8_t> absent(batch.ids.size());
        const ShownIds shown{examples.data(), step, absent.data()};
        EXPECT_OK(store.LookupShown(batch.view(), shown, SerialFor, rows.data()));
        for (size_t r = 0; r < batch.ids.size(); ++r) {
          for (int d = 1; d < kDim; ++d) EXPECT_EQ(rows[r * kDim + d], rows[r * kDim]);
        }
        EXPECT_OK(store.Admit(batch.view(), shown, SerialFor));
        Update(&store, batch, 1, -1, step++);
      }
    });
  }
  traffic.Run([&] {
    for (int i = 0; i < rounds; ++i) {
      store.HoldSweeps(i % 4 == 0);
      store.Sweep([] { return true; });
      store.SetOldestStep(i % 2, step.load() / 2);
      for (int t = 0; t < 2; ++t) {
        // Each of the two threads counts a row before it displaces another.
        if (eviction.max_rows > 0) EXPECT_TRUE(NumRows(store, t) <= eviction.max_rows + 2);
      }
      EXPECT_TRUE(store.Copy([](const RowColumns&) { return Status::Ok(); }).ok());
      EXPECT_OK(store.CopyCounters([](const CounterColumns&) { return Status::Ok(); }));
    }
  });
  Rows chain;
  Counters counters;
  int64_t committed = -1, cuts = 0;
  const auto cut_once = [&](bool fails) {
    const CutKind kind = cuts % 11 == 0 ? CutKind::kBase : CutKind::kDelta;
    Rows rows = kind == CutKind::kBase ? Rows() : chain;
    Counters counted = kind == CutKind::kBase ? Counters() : counters;
    const CounterSink count = [&](const CounterColumns& columns) {
      ApplyCounters(columns, &counted);
      return Status::Ok();
    };
    int64_t cut = 0;
    const Status status = store.Cut(
        kind, committed,
        [&](const RowColumns& columns) {
          if (fails) return Status::IoError("disk full");
          Apply(columns, kDim, &rows);
          return Status::Ok();
        },
        &cut, &count);
    ++cuts;
    if (!status.ok()) return;
    chain = std::move(rows);
    counters = std::move(counted);
    committed = cut;
  };
  while (traffic.running > 0) cut_once(cuts % 3 == 2);
  traffic.Join();
  cut_once(false);
  EXPECT_TRUE(chain == BaseOf(&store));
  Counters left;
  EXPECT_OK(store.CopyCounters([&left](const CounterColumns& columns) {
    ApplyCounters(columns, &left);
    return Status::Ok();
  }));
  EXPECT_EQ(left.empty(), admission.kind == AdmissionConfig::Kind::kAlways);
  // The saves also have counters that were forgotten at the limit.
  for (const auto& [key, counter] : left) EXPECT_TRUE(counters.at(key) == counter);
  int64_t evicted = 0;
  for (int t = 0; t < 2; ++t) {
    for (const int64_t count : store.Evicted(t)) evicted += count;
  }
  EXPECT_TRUE(evicted > 0);
}

TEST(RowsStayWholeAtARowLimit) {
  EvictionConfig eviction;
  eviction.max_rows = 500;
  eviction.ttl_steps = 40;
  ExpectWholeRowsUnderEviction(eviction);
}

TEST(RowsAndCountersStayWholeAtAByteLimit) {
  EvictionConfig eviction;
  AdmissionConfig admission;
  admission.kind = AdmissionConfig::Kind::kMinCount;
  admission.min_count = 2;
  eviction.max_bytes = TableEviction::LeastBytes(LayoutOf(MakeConfig(8, 2)), admission, 0);
  eviction.order = EvictionOrder::kLeastFrequent;
  eviction.min_norm = 4;
  eviction.has_oldest_step = true;
  ExpectWholeRowsUnderEviction(eviction, admission);
}

TEST(LoadsRunBesideLookupsUpdatesAndCuts) {
  constexpr int kDim = 4;
  RowStore store(MakeConfig(kDim, 1)), source(MakeConfig(kDim, 1));
  const std::vector<int64_t> ids = Range(0, 2000);
  Lookup(&source, Batch{ids});
  for (int i = 1; i < 4; ++i) Update(&source, Batch{ids}, 1, -1, i);
  source.Remove(0, ids.data(), 500);
  int64_t cut;
  const std::vector<RowColumns> records = RecordsOf(&source, CutKind::kDelta, -1, &cut);
  Traffic traffic;
  for (int k = 0; k < 2; ++k) {
    traffic.Run([&store, k] {
      std::mt19937_64 random(k);
      for (int i = 0; i < 150; ++i) {
        const Batch batch{SomeIds(&random, 3000)};
        const std::vector<float> rows = Lookup(&store, batch, k == 0);
        for (size_t r = 0; r < rows.size(); ++r) EXPECT_EQ(rows[r], rows[r / kDim * kDim]);
        Update(&store, batch, 1, -1, 5);
      }
    });
  }
  traffic.Run([&] {
    for (int i = 0; i < 8; ++i) {
      for (const RowColumns& columns : records) store.Load(columns, {0}, 0, 1, true, SerialFor);
    }
  });
  do {
    Rows rows;
    CutOnto(&store, CutKind::kBase, -1, &rows);
    for (const auto& row : rows) EXPECT_TRUE(IsWhole(row.second, kDim, OptimizerKind::kSgd));
  } while (traffic.running > 0);
  traffic.Join();
  for (const auto& row : BaseOf(&store)) {
    EXPECT_TRUE(IsWhole(row.second, kDim, OptimizerKind::kSgd));
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
