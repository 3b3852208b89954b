// Tests which rows go by age, norm and limits, and that files hold what becomes of them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/chosen_ids.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

RowStoreConfig WithEviction(const EvictionConfig& eviction) {
  RowStoreConfig config = MakeConfig(4, 1);
  config.tables[0].initializer = {InitializerConfig::Kind::kConstant, 1, 0};
  config.tables[0].eviction = eviction;
  return config;
}

void Sweep(RowStore* store) {
  store->Sweep([] { return true; });
}

std::set<int64_t> IdsOf(RowStore* store) {
  std::set<int64_t> ids;
  for (const auto& row : BaseOf(store)) ids.insert(row.first.second);
  return ids;
}

int64_t Evicted(const RowStore& store, EvictionCause cause) {
  return store.Evicted(0)[static_cast<int>(cause)];
}

TEST(RowsOlderThanTheirTimeGo) {
  EvictionConfig eviction;
  eviction.ttl_steps = 10;
  RowStore store(WithEviction(eviction));
  Lookup(&store, Batch{{1, 2}});
  Update(&store, Batch{{1, 2}}, 1, 1, 5);
  Update(&store, Batch{{2}}, 1, 1, 15);
  Sweep(&store);
  EXPECT_TRUE((IdsOf(&store) == std::set<int64_t>{1, 2}));  // 1 is 10 steps old
  Update(&store, Batch{{2}}, 1, 1, 16);
  Lookup(&store, Batch{{3}});  // created at step 16
  Sweep(&store);
  EXPECT_TRUE((IdsOf(&store) == std::set<int64_t>{2, 3}));
  EXPECT_EQ(Evicted(store, EvictionCause::kAge), 1);
  EXPECT_EQ(NumRows(store, 0), 2);
}

// Twice its number, for the ids below 10.
class VectorsOfSome : public InitialVectors {
 public:
  bool Read(int64_t id, float* vector) const override {
    if (id >= 10) return false;
    std::fill_n(vector, 4, 2 * static_cast<float>(id));
    return true;
  }
};

TEST(AReturningIdStartsWithItsVectorIfThereIsOne) {
  EvictionConfig eviction;
  eviction.ttl_steps = 1;
  RowStoreConfig config = WithEviction(eviction);
  config.tables[0].absent_reads_initial = true;
  RowStore store(config);
  store.AddInitialVectors(0, std::make_shared<VectorsOfSome>());
  const std::vector<float> expected{6, 6, 6, 6, 1, 1, 1, 1};
  EXPECT_EQ(Lookup(&store, Batch{{3, 30}}, false), expected);  // while they are absent
  EXPECT_EQ(Lookup(&store, Batch{{3, 30}}), expected);
  Update(&store, Batch{{3, 30}}, 1, 1, 5);
  EXPECT_EQ(Lookup(&store, Batch{{3, 30}}), (std::vector<float>{5, 5, 5, 5, 0, 0, 0, 0}));
  Update(&store, Batch{{1}}, 1, 1, 9);
  Sweep(&store);
  EXPECT_EQ(NumRows(store, 0), 0);
  EXPECT_EQ(Lookup(&store, Batch{{3, 30}}), expected);
  store.Clear();
  EXPECT_EQ(Lookup(&store, Batch{{3}}), (std::vector<float>{1, 1, 1, 1}));
}

int64_t num_calls = 0, num_computed = 0;

// Twice each id; fails for ids from 1,000 on.
int TwiceTheId(const char* name, const int64_t* ids, int64_t num_ids, int dim, float* vectors,
               char* error, int64_t error_bytes) {
  ++num_calls;
  num_computed += num_ids;
  for (int64_t i = 0; i < num_ids; ++i) {
    if (ids[i] >= 1000) {
      std::snprintf(error, error_bytes, "%s is too large for %s", "an id", name);
      return 1;
    }
    std::fill_n(vectors + i * dim, dim, 2 * static_cast<float>(ids[i]));
  }
  return 0;
}

TEST(AFunctionComputesTheNewRowsOfAStepInOneCall) {
  EvictionConfig eviction;
  eviction.ttl_steps = 1;
  for (const bool admits : {false, true}) {
    RowStoreConfig config = WithEviction(eviction);
    config.tables[0].initializer = {InitializerConfig::Kind::kFunction, 0, 0, "shop:vectors"};
    if (admits) {
      config.tables[0].admission.kind = AdmissionConfig::Kind::kMinCount;
      config.tables[0].admission.min_count = 2;
    }
    RowStore store(config);
    const auto look = [&](const Batch& batch, int examples, std::vector<float>* rows) {
      const int64_t n = batch.view().num_ids;
      const std::vector<int32_t> shown_by(n, examples);
      std::vector<uint8_t> absent(n);
      rows->assign(n * 4, -1);
      if (!admits) return store.Lookup(batch.view(), true, SerialFor, rows->data());
      const ShownIds shown{shown_by.data(), 3, absent.data()};
      EMBEDPS_RETURN_IF_ERROR(store.LookupShown(batch.view(), shown, SerialFor, rows->data()));
      return store.Admit(batch.view(), shown, SerialFor);
    };
    std::vector<float> rows;
    SetVectorFunction(nullptr);
    EXPECT_EQ(std::string(look(Batch{{3}}, 2, &rows).message()),
              "this process has no Python to call shop:vectors with");
    SetVectorFunction(TwiceTheId);
    num_calls = num_computed = 0;
    EXPECT_OK(look(Batch{Range(0, 100)}, 2, &rows));
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(rows[4 * i + 3], 2.f * i);
    EXPECT_EQ(num_calls, admits ? 2 : 1);
    EXPECT_EQ(num_computed, 100 * num_calls);
    EXPECT_OK(look(Batch{Range(0, 100)}, 2, &rows));
    EXPECT_EQ(num_calls, admits ? 2 : 1);  // they have rows
    EXPECT_EQ(NumRows(store, 0), 100);
    if (admits) {
      EXPECT_OK(look(Batch{{200}}, 1, &rows));  // not yet
      EXPECT_EQ(num_calls, 2);
      EXPECT_EQ(rows, std::vector<float>(4, 0));
    }
    EXPECT_EQ(std::string(look(Batch{{300, 1000}}, 2, &rows).message()),
              "an id is too large for shop:vectors");
    EXPECT_EQ(NumRows(store, 0), 100);
    Update(&store, Batch{{7}}, 1, 1, 5);
    EXPECT_EQ(Lookup(&store, Batch{{7, 999}}, false),
              (std::vector<float>{13, 13, 13, 13, 0, 0, 0, 0}));
    Update(&store, Batch{{8}}, 1, 1, 9);
    Sweep(&store);
    EXPECT_OK(look(Batch{{7}}, 2, &rows));
    EXPECT_EQ(rows, std::vector<float>(4, 14));
  }
}

TEST(AReturningIdStartsAnew) {
  EvictionConfig eviction;
  eviction.ttl_steps = 1;
  RowStore store(WithEviction(eviction));
  Lookup(&store, Batch{{1, 2}});
  Update(&store, Batch{{1}}, 1, 1, 1);
  Rows chain;
  const int64_t first = CutOnto(&store, CutKind::kBase, -1, &chain);
  Update(&store, Batch{{2}}, 1, 1, 9);
  Sweep(&store);
  EXPECT_TRUE(Lookup(&store, Batch{{1}}) == std::vector<float>(4, 1));
  // The removal and the new row are in one delta.
  CutOnto(&store, CutKind::kDelta, first, &chain);
  EXPECT_TRUE(chain == BaseOf(&store));
  const Record row = chain[{0, 1}];
  EXPECT_TRUE(row.floats == std::vector<float>(4, 1));
  EXPECT_EQ(row.frequency, 0u);
  EXPECT_EQ(row.last_step, 9u);
}

TEST(UpdatedRowsOfSmallNormGo) {
  EvictionConfig eviction;
  eviction.min_norm = 0.5;
  RowStore store(WithEviction(eviction));
  Lookup(&store, Batch{{1, 2, 3}});
  Update(&store, Batch{{1}}, 0.75, 1, 1);  // four times 0.25: the norm is 0.5
  Update(&store, Batch{{2}}, 0.7501, 1, 1);
  Sweep(&store);
  EXPECT_TRUE((IdsOf(&store) == std::set<int64_t>{1, 3}));
  EXPECT_EQ(Evicted(store, EvictionCause::kNorm), 1);
}

TEST(NewRowsDisplaceTheLeastRecentAtALimit) {
  EvictionConfig eviction;
  eviction.max_rows = 1000;
  RowStore store(WithEviction(eviction));
  for (int64_t i = 0; i < 5000; ++i) {
    Lookup(&store, Batch{{i}});
    Update(&store, Batch{{i}}, 1, 1, static_cast<uint32_t>(i));
    EXPECT_TRUE(NumRows(store, 0) <= 1000);
  }
  EXPECT_EQ(NumRows(store, 0), 1000);
  EXPECT_EQ(Evicted(store, EvictionCause::kLimit), 4000);
  const std::set<int64_t> ids = IdsOf(&store);
  EXPECT_TRUE(std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 3500; }) > 900);
}

TEST(FrequentRowsStayAtALimitByFrequency) {
  EvictionConfig eviction;
  eviction.max_rows = 1000;
  eviction.order = EvictionOrder::kLeastFrequent;
  RowStore store(WithEviction(eviction));
  const Batch hot{Range(0, 300)};
  Lookup(&store, hot);
  for (uint32_t step = 1; step < 4; ++step) Update(&store, hot, 1, 1, step);
  for (int64_t i = 300; i < 5000; ++i) {
    Lookup(&store, Batch{{i}});
    Update(&store, Batch{{i}}, 1, 1, static_cast<uint32_t>(i));
  }
  const std::set<int64_t> ids = IdsOf(&store);
  for (const int64_t id : hot.ids) EXPECT_TRUE(ids.count(id) == 1);
  EXPECT_EQ(NumRows(store, 0), 1000);
}

// A choice that is found ahead, within a batch, is the one that a look at all candidates gives.
TEST(ABatchDisplacesWhatItsIdsDisplaceOneByOne) {
  struct Case {
    int64_t max_rows;
    bool in_bytes;
  };
  for (const EvictionOrder order : {EvictionOrder::kLeastRecent, EvictionOrder::kLeastFrequent}) {
    for (const auto& [max_rows, in_bytes] :
         {Case{100, false}, Case{1000, false}, Case{2200, false}, Case{20'000, false},
          Case{2200, true}, Case{20'000, true}}) {
      EvictionConfig eviction;
      (in_bytes ? eviction.max_bytes : eviction.max_rows) =
          in_bytes ? 65536 + 72 * max_rows : max_rows;
      eviction.order = order;
      RowStore batches(WithEviction(eviction)), singles(WithEviction(eviction));
      const Batch first{Range(0, max_rows)};
      for (RowStore* store : {&batches, &singles}) Lookup(store, first);
      for (int64_t step = 1; step < 9; ++step) {
        Batch batch{Range(step * max_rows, step * max_rows + max_rows / 2)};
        // A batch visits stripe by stripe. An empty one displaces in another.
        std::stable_sort(batch.ids.begin(), batch.ids.end(), [](int64_t a, int64_t b) {
          const auto stripe = [](int64_t id) { return StripeOf(RowHash(TableSalt("t0"), id)); };
          return stripe(a) < stripe(b);
        });
        Lookup(&batches, batch);
        for (const int64_t id : batch.ids) Lookup(&singles, Batch{{id}});
        std::vector<int64_t> some;
        for (const int64_t id : batch.ids) {
          if (Mix64(id) % 3 == 0) some.push_back(id);
        }
        for (RowStore* store : {&batches, &singles}) {
          Update(store, Batch{some}, 1, 1, static_cast<uint32_t>(step));
        }
        EXPECT_TRUE(BaseOf(&batches) == BaseOf(&singles));
      }
      EXPECT_TRUE(Evicted(batches, EvictionCause::kLimit) > max_rows);
      EXPECT_EQ(Evicted(batches, EvictionCause::kLimit), Evicted(singles, EvictionCause::kLimit));
    }
  }
}

TEST(ALimitBelowTheStripesDisplacesInOthers) {
  EvictionConfig eviction;
  eviction.max_rows = 3;
  RowStore store(WithEviction(eviction));
  for (int64_t i = 0; i < 500; ++i) Lookup(&store, Batch{{i}});
  EXPECT_EQ(NumRows(store, 0), 3);
  EXPECT_EQ(Evicted(store, EvictionCause::kLimit), 497);
  EXPECT_EQ(store.Stats().rejected_inserts, 0);
}

TEST(MemoryStaysBelowAByteLimit) {
  EvictionConfig eviction;
  eviction.max_bytes = 4 << 20;
  RowStore store(WithEviction(eviction));
  Rows chain;
  int64_t since = CutOnto(&store, CutKind::kBase, -1, &chain);
  uint32_t step = 1;
  for (int64_t first = 0; first < 400'000; first += 1000) {
    const Batch batch{Range(first, first + 1000)};
    Lookup(&store, batch);
    Update(&store, batch, 1, 1, step++);
    EXPECT_TRUE(store.Stats().memory_bytes <= eviction.max_bytes);
    if (first % 20'000 == 0) since = CutOnto(&store, CutKind::kDelta, since, &chain);
  }
  CutOnto(&store, CutKind::kDelta, since, &chain);
  EXPECT_TRUE(chain == BaseOf(&store));
  EXPECT_TRUE(NumRows(store, 0) > 30'000);
}

// Steps that fill the table several times between saves, after which all its rows are saved and go
// again: the lists have all that they can have.
TEST(MemoryStaysBelowEveryByteLimitFromTheLeastOn) {
  for (const int dim : {1, 8, 64}) {
    for (const int times : {1, 2, 5, 40}) {
      RowStoreConfig config = MakeConfig(dim, 1);
      EvictionConfig& eviction = config.tables[0].eviction;
      eviction.max_bytes = times * TableEviction::LeastBytes(LayoutOf(config), 0);
      RowStore store(config);
      Rows chain;
      int64_t since = CutOnto(&store, CutKind::kBase, -1, &chain);
      int64_t first = 0;
      uint32_t step = 1;
      for (int save = 0; save < 4; ++save) {
        for (int64_t end = first + 3000 * times; first < end; first += 500) {
          const Batch batch{Range(first, first + 500)};
          Lookup(&store, batch);
          Update(&store, batch, 1, 1, step++);
          EXPECT_TRUE(store.Stats().memory_bytes <= eviction.max_bytes);
        }
        since = CutOnto(&store, CutKind::kDelta, since, &chain);
        EXPECT_TRUE(store.Stats().memory_bytes <= eviction.max_bytes);
        store.Evict(0, save % 2 == 0 ? step : 0, 1 << 20);
        EXPECT_TRUE(store.Stats().memory_bytes <= eviction.max_bytes);
      }
      CutOnto(&store, CutKind::kDelta, since, &chain);
      EXPECT_TRUE(chain == BaseOf(&store));
      EXPECT_TRUE(NumRows(store, 0) >= 500);
    }
  }
}

TEST(MemoryStaysBelowAByteLimitHoweverManyRowsGoBetweenSaves) {
  EvictionConfig eviction;
  eviction.max_bytes = 4 << 20;
  RowStore store(WithEviction(eviction));
  Rows chain;
  int64_t since = CutOnto(&store, CutKind::kBase, -1, &chain);
  for (int save = 0; save < 3; ++save) {
    for (int64_t first = save * 1'000'000; first < save * 1'000'000 + 300'000; first += 1000) {
      Lookup(&store, Batch{Range(first, first + 1000)});
      EXPECT_TRUE(store.Stats().memory_bytes <= eviction.max_bytes);
      if (first % 100'000 == 0) store.Evict(0, 1, 2);
    }
    int64_t records = 0;
    since = CutOnto(&store, CutKind::kDelta, since, &chain, &records);
    // Rows that came and went between two saves leave no removals.
    EXPECT_TRUE(records < 120'000);  // twice what fits
  }
  EXPECT_TRUE(chain == BaseOf(&store));
}

TEST(WhatACopyGaveIsRemovedByTheNextDelta) {
  RowStore store(WithEviction(EvictionConfig()));
  Rows rows;
  const int64_t cut = CutOnto(&store, CutKind::kBase, -1, &rows);
  Lookup(&store, Batch{Range(0, 100)});
  rows.clear();
  const Status copied = store.Copy([&](const RowColumns& columns) {
    Apply(columns, 4, &rows);
    return Status::Ok();
  });
  EXPECT_TRUE(copied.ok());
  EXPECT_EQ(store.Evict(0, 1, 1), 100);
  CutOnto(&store, CutKind::kDelta, cut, &rows);
  EXPECT_TRUE(rows.empty());
}

TEST(WhatMarkCleanSawIsRemovedByTheNextDelta) {
  RowStore store(WithEviction(EvictionConfig()));
  Lookup(&store, Batch{Range(0, 100)});
  const int64_t cut = store.MarkClean();
  EXPECT_EQ(store.Evict(0, 1, 1), 100);
  Rows rows;
  int64_t records = 0;
  CutOnto(&store, CutKind::kDelta, cut, &rows, &records);
  EXPECT_EQ(records, 100);
}

TEST(RowsBeforeTheOldestStepGo) {
  EvictionConfig eviction;
  eviction.has_oldest_step = true;
  RowStore store(WithEviction(eviction));
  for (int64_t i = 1; i < 6; ++i) {
    Lookup(&store, Batch{{i}});
    Update(&store, Batch{{i}}, 1, 1, static_cast<uint32_t>(10 * i));
  }
  Sweep(&store);
  EXPECT_EQ(NumRows(store, 0), 5);
  store.SetOldestStep(0, 30);
  Sweep(&store);
  EXPECT_TRUE((IdsOf(&store) == std::set<int64_t>{3, 4, 5}));
  EXPECT_EQ(Evicted(store, EvictionCause::kAge), 2);
}

TEST(ASweepIsDueWhenASixteenthOfTheTimeToLiveHasPassed) {
  EvictionConfig eviction;
  eviction.has_oldest_step = true;
  RowStore store(WithEviction(eviction));
  Lookup(&store, Batch{{1}});
  Update(&store, Batch{{1}}, 1, 1, 1000);
  EXPECT_FALSE(store.IsSweepDue());
  store.SetOldestStep(0, 200);  // 801 steps to live
  EXPECT_TRUE(store.IsSweepDue());
  Sweep(&store);
  EXPECT_FALSE(store.IsSweepDue());
  store.SetOldestStep(0, 247);  // of 754, 47 passed
  EXPECT_FALSE(store.IsSweepDue());
  store.SetOldestStep(0, 248);
  EXPECT_TRUE(store.IsSweepDue());
}

TEST(LoadingDisplacesWhatALowerLimitHasNoPlaceFor) {
  EvictionConfig eviction;
  RowStore source(WithEviction(eviction));
  for (uint32_t step = 1; step < 21; ++step) {
    const Batch batch{Range(step * 1000, step * 1000 + 1000)};
    Lookup(&source, batch);
    Update(&source, batch, 1, 1, step);
  }
  int64_t cut;
  const std::vector<RowColumns> records = RecordsOf(&source, CutKind::kBase, -1, &cut);
  Rows chain;
  for (const RowColumns& columns : records) Apply(columns, 4, &chain);
  eviction.max_rows = 2000;
  RowStore store(WithEviction(eviction));
  for (const RowColumns& columns : records) {
    store.Load(columns, {0}, 0, 1, true, SerialFor);
    EXPECT_TRUE(NumRows(store, 0) < 4000);
  }
  const int64_t since = store.MarkClean();
  EXPECT_EQ(NumRows(store, 0), 2000);
  // The chain goes on with the removals.
  CutOnto(&store, CutKind::kDelta, since, &chain);
  EXPECT_TRUE(chain == BaseOf(&store));
}

// The shards of a table that share a byte limit.
class LimitedShards {
 public:
  LimitedShards(int num_shards, int dim, int64_t max_bytes) : part_(max_bytes / num_shards) {
    RowStoreConfig config = MakeConfig(dim, 1, OptimizerKind::kRowwiseAdagrad);
    config.tables[0].eviction.max_bytes = part_;
    for (int i = 0; i < num_shards; ++i) stores_.push_back(std::make_unique<RowStore>(config));
  }

  // Trains new ids only, until each shard has displaced as many rows as it holds. Returns a base
  // and deltas.
  std::vector<RowColumns> Fill() {
    std::vector<RowColumns> chain;
    std::vector<int64_t> cuts(stores_.size(), -1);
    int64_t next = 0;
    for (uint32_t save = 0; save < 6; ++save) {
      for (size_t i = 0; i < stores_.size(); ++i) {
        const CutKind kind = save == 0 ? CutKind::kBase : CutKind::kDelta;
        for (RowColumns& each : RecordsOf(stores_[i].get(), kind, cuts[i], &cuts[i])) {
          chain.push_back(std::move(each));
        }
      }
      const int64_t bytes = part_ * static_cast<int64_t>(stores_.size());
      const int64_t last = next + bytes / (60 + 4 * stores_[0]->config().dim) * 2 / 5;
      for (; next < last; next += 1000) {
        std::vector<std::vector<int64_t>> ids(stores_.size());
        for (int64_t id = next; id < next + 1000; ++id) ids[ShardOf(id)].push_back(id);
        for (size_t i = 0; i < stores_.size(); ++i) {
          Lookup(stores_[i].get(), Batch{ids[i]});
          if (save < 5) Update(stores_[i].get(), Batch{ids[i]}, 1, 1, save + 1);
        }
      }
    }
    for (size_t i = 0; i < stores_.size(); ++i) {
      EXPECT_TRUE(Evicted(*stores_[i], EvictionCause::kLimit) > NumRows(*stores_[i], 0));
      for (RowColumns& each : RecordsOf(stores_[i].get(), CutKind::kDelta, cuts[i], &cuts[i])) {
        chain.push_back(std::move(each));
      }
    }
    return chain;
  }

  void Load(const std::vector<RowColumns>& chain) {
    const int n = static_cast<int>(stores_.size());
    for (const RowColumns& columns : chain) {
      for (int i = 0; i < n; ++i) stores_[i]->Load(columns, {0}, i, n, true, SerialFor);
    }
    for (const auto& store : stores_) store->MarkClean();
  }

  Rows AllRows() const {
    Rows rows;
    for (const auto& store : stores_) rows.merge(BaseOf(store.get()));
    return rows;
  }
  int64_t Displaced() const {
    int64_t displaced = 0;
    for (const auto& store : stores_) displaced += Evicted(*store, EvictionCause::kLimit);
    return displaced;
  }
  int64_t MostBytes() const {
    int64_t most = 0;
    for (const auto& store : stores_) most = std::max(most, store->Stats().memory_bytes);
    return most;
  }
  // What a shard may take while records are read.
  int64_t MaxBytes() const {
    const int64_t row = 60 + 4 * stores_[0]->config().dim;
    const double rows = static_cast<double>(part_ / row);
    return part_ + part_ / 64 + (static_cast<int64_t>(16 * std::sqrt(rows)) + 1024) * row +
           TableEviction::kTableBytes;
  }

 private:
  int ShardOf(int64_t id) const {
    return embedps::ShardOf(RowHash(TableSalt("t0"), id), static_cast<int>(stores_.size()));
  }

  const int64_t part_;
  std::vector<std::unique_ptr<RowStore>> stores_;
};

TEST(WhatShardsHoldAtAByteLimitHasAPlaceOnAnyOthers) {
  struct Case {
    int dim;
    int64_t max_bytes;
  };
  for (const Case& each :
       {Case{1, 1 << 20}, Case{4, 3 << 20}, Case{9, 8 << 20}, Case{64, 8 << 20}}) {
    for (const int from : {1, 3}) {
      LimitedShards source(from, each.dim, each.max_bytes);
      const std::vector<RowColumns> chain = source.Fill();
      const Rows rows = source.AllRows();
      for (const int to : {1, 2, 3, 5}) {
        LimitedShards restored(to, each.dim, each.max_bytes);
        restored.Load(chain);
        EXPECT_EQ(restored.Displaced(), 0);
        EXPECT_TRUE(restored.AllRows() == rows);
        EXPECT_TRUE(restored.MostBytes() <= restored.MaxBytes());
      }
    }
  }
}

TEST(IdsChosenToShareBitsOfTheirHashesStayWithinAByteLimit) {
  RowStoreConfig config = MakeConfig(16, 1);
  EvictionConfig& eviction = config.tables[0].eviction;
  eviction.max_bytes = 16 << 20;
  RowStore store(config);
  const std::vector<int64_t> chosen = testing::ChosenIds(TableSalt("t0"), 200000);
  for (size_t first = 0; first < chosen.size(); first += 1000) {
    const Batch batch({{chosen.begin() + first, chosen.begin() + first + 1000}});
    Lookup(&store, batch);
    EXPECT_TRUE(store.Stats().memory_bytes <= eviction.max_bytes);
  }
  EXPECT_TRUE(NumRows(store, 0) > 100000);
  EXPECT_EQ(store.Stats().rejected_inserts, 0);
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
