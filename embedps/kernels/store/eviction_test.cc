// Tests which rows go by age, norm and limits, and that files hold what becomes of them.
#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
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

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
