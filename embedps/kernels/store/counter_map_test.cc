#include "embedps/kernels/store/counter_map.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/chosen_ids.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr uint64_t kSalt = 0x1234;

IdHashes HashOf(int64_t id) { return HashesOf(kSalt, id); }

CounterBudget no_limit(0);

// Counts examples without admitting the id.
void Add(CounterMap* counters, int64_t id, uint32_t examples, uint32_t step) {
  EXPECT_FALSE(counters->Show(HashOf(id), id, examples, kMaxMinCount + 1, step));
}

using Counts = std::map<int64_t, std::pair<uint32_t, uint32_t>>;  // id to count and last step

Counts CopyOf(CounterMap* counters) {
  Counts found;
  for (size_t at = 0; counters->CopyPage(
           &at, [&](const CounterRecord& c) { found[c.id] = {c.count, c.last_step}; });) {
  }
  return found;
}

// Applies a cut's records to `counts`. Returns how many there were.
int64_t CutOnto(CounterMap* counters, uint32_t number, bool drop_pending, bool all,
                Counts* counts) {
  int64_t records = 0;
  const auto apply = [&](const CounterRecord& c) {
    ++records;
    if (c.count == 0) {
      counts->erase(c.id);
    } else {
      (*counts)[c.id] = {c.count, c.last_step};
    }
  };
  for (size_t at = 0; counters->NextPage(number, drop_pending, all, &at, apply);) {
  }
  return records;
}

TEST(EqualsAMapUnderGrowthAndRemoval) {
  CounterMap counters(kSalt, 0, &no_limit);
  Counts model;
  std::mt19937_64 random(5);
  for (int i = 0; i < 200000; ++i) {
    const auto id = static_cast<int64_t>(random() % 20000);
    const uint32_t step = static_cast<uint32_t>(i) << 2;
    if (random() % 3 == 0) {
      counters.Erase(HashOf(id), id);
      model.erase(id);
    } else {
      const uint32_t count = model.count(id) ? model[id].first : 0;
      EXPECT_EQ(counters.Count(HashOf(id), id, step), count);
      const bool admits = count + 1 >= 40;
      EXPECT_EQ(counters.Show(HashOf(id), id, 1, 40, step), admits);
      if (!admits) model[id] = {count + 1, step >> 10 << 10};
    }
  }
  EXPECT_EQ(counters.size(), static_cast<int64_t>(model.size()));
  EXPECT_TRUE(CopyOf(&counters) == model);
}

TEST(CounterTakesAtMost18Bytes) {
  CounterMap counters(kSalt, 0, &no_limit);
  int64_t size = 0;
  for (int64_t id = 0; id < 400000; ++id) {
    Add(&counters, id, 1, 0);
    ++size;
    // At every size from some hundred on, not only where pages happen to be full.
    if (size >= 500 && size % 997 == 0) EXPECT_TRUE(counters.MemoryBytes() <= 18 * size);
  }
  EXPECT_TRUE(counters.MemoryBytes() <= 18 * size);
}

TEST(CounterOfAnIdChosenToShareBitsOfItsHashTakesAtMost18Bytes) {
  CounterMap counters(kSalt, 0, &no_limit);
  int64_t size = 0;
  for (const int64_t id : testing::ChosenIds(kSalt, 60000)) {
    Add(&counters, id, 1, 0);
    ++size;
    if (size >= 5000 && size % 97 == 0) EXPECT_TRUE(counters.MemoryBytes() <= 18 * size);
  }
  // Those of others beside them.
  for (int64_t id = 0; id < 60000; ++id) Add(&counters, id, 1, 0);
  size += 60000;
  EXPECT_EQ(counters.size(), size);
  EXPECT_TRUE(counters.MemoryBytes() <= 18 * size);
  EXPECT_EQ(CopyOf(&counters).size(), static_cast<size_t>(size));
}

TEST(CountersOfChosenIdsStayWithinTheirBudget) {
  CounterBudget budget(64 << 10);
  CounterMap counters(kSalt, 0, &budget);
  for (const int64_t id : testing::ChosenIds(kSalt, 60000)) Add(&counters, id, 1, 0);
  EXPECT_TRUE(counters.MemoryBytes() <= budget.most_bytes());
  EXPECT_TRUE(counters.MemoryBytes() > budget.most_bytes() / 2);
}

TEST(CounterExpiresAndItsMemoryIsUsedAgain) {
  CounterMap counters(kSalt, 2048, &no_limit);
  for (int64_t id = 0; id < 1000; ++id) Add(&counters, id, 2, 1024);
  EXPECT_EQ(counters.Count(HashOf(7), 7, 1024 + 2048 + 1023), 2u);
  EXPECT_EQ(counters.Count(HashOf(7), 7, 1024 + 3072), 0u);
  const int64_t before = counters.MemoryBytes();
  for (int64_t id = 1000; id < 3000; ++id) Add(&counters, id, 1, 100 * 1024);
  EXPECT_TRUE(counters.size() < 2500);
  EXPECT_TRUE(counters.MemoryBytes() < 3 * before);
  EXPECT_EQ(counters.Count(HashOf(7), 7, 100 * 1024), 0u);
}

TEST(DeltasGiveWhatChangedAndGiveItAgainUntilItIsCommitted) {
  CounterMap counters(kSalt, 0, &no_limit);
  std::mt19937_64 random(11);
  Counts followed;
  uint32_t number = 0;
  bool committed = true;
  for (int round = 0; round < 60; ++round) {
    std::set<int64_t> touched;
    for (int i = 0; i < 300; ++i) {
      const auto id = static_cast<int64_t>(random() % 5000);
      touched.insert(id);
      if (random() % 4 == 0) {
        counters.Erase(HashOf(id), id);
      } else {
        Add(&counters, id, 1 + random() % 3, 0);
      }
    }
    const bool all = round % 7 == 3;
    Counts saved = followed;
    if (all) saved.clear();
    const int64_t records = CutOnto(&counters, ++number, committed, all, &saved);
    EXPECT_TRUE(saved == CopyOf(&counters));
    if (committed && !all) {
      EXPECT_TRUE(records <= static_cast<int64_t>(2 * touched.size()));
    }
    committed = random() % 3 != 0;
    if (committed) followed = saved;
  }
}

TEST(PageThatIsSplitDuringACutIsGivenOnce) {
  CounterMap counters(kSalt, 0, &no_limit);
  for (int64_t id = 0; id < 500; ++id) Add(&counters, id, 1, 0);
  Counts first;
  size_t at = 0;
  const auto apply = [&](const CounterRecord& c) { first[c.id] = {c.count, c.last_step}; };
  EXPECT_TRUE(counters.NextPage(1, true, false, &at, apply));
  EXPECT_EQ(first.size(), size_t{500});
  // The only page splits after its visit. What comes now belongs to the next cut, and what was
  // given stays pending.
  for (int64_t id = 500; id < 2000; ++id) Add(&counters, id, 1, 0);
  while (counters.NextPage(1, true, false, &at, apply)) {
  }
  EXPECT_EQ(first.size(), size_t{500});
  Counts again;
  CutOnto(&counters, 2, /*drop_pending=*/false, /*all=*/false, &again);
  EXPECT_EQ(again.size(), size_t{2000});
}

TEST(SavedCounterThatWasRemovedIsListedAndLeavesItsMemory) {
  CounterMap counters(kSalt, 0, &no_limit);
  Counts followed;
  for (uint32_t number = 1; number <= 50; ++number) {
    const int64_t first = number * 1000;
    for (int64_t id = first; id < first + 1000; ++id) Add(&counters, id, 1, 0);
    CutOnto(&counters, number, /*drop_pending=*/true, /*all=*/false, &followed);
    EXPECT_EQ(followed.size(), size_t{1000});
    for (int64_t id = first; id < first + 1000; ++id) counters.Erase(HashOf(id), id);
    EXPECT_EQ(counters.size(), 0);
  }
  // A counter that no save has had leaves nothing to save.
  CutOnto(&counters, 51, true, false, &followed);
  Add(&counters, 7, 1, 0);
  counters.Erase(HashOf(7), 7);
  EXPECT_EQ(CutOnto(&counters, 52, true, false, &followed), 0);
  EXPECT_TRUE(followed.empty());
  EXPECT_TRUE(counters.MemoryBytes() < 3 * 18 * 1000);  // of two saves' counters and the new ones
}

TEST(AtItsBudgetForgetsThoseThatNoExampleShowedForLongest) {
  CounterBudget budget(36 << 10);
  CounterMap counters(kSalt, 0, &budget);
  constexpr int64_t kAll = 100000;
  for (int64_t id = 0; id < kAll; ++id) {
    Add(&counters, id, 1, static_cast<uint32_t>(id) << 4);
    for (const int64_t hot : {-1, -2, -3}) {  // never the oldest
      if (id % 1000 == 0) counters.Show(HashOf(hot), hot, 1, 200, static_cast<uint32_t>(id) << 4);
    }
  }
  EXPECT_EQ(budget.bytes(), counters.MemoryBytes());
  EXPECT_TRUE(counters.MemoryBytes() <= budget.most_bytes() + 2048);
  EXPECT_TRUE(counters.MemoryBytes() > budget.most_bytes() / 2);
  EXPECT_EQ(counters.Count(HashOf(-1), -1, 0), 100u);
  const Counts found = CopyOf(&counters);
  EXPECT_EQ(static_cast<int64_t>(found.size()), counters.size());
  EXPECT_TRUE(counters.size() > 1000);
  int64_t recent = 0;
  for (const auto& [id, counter] : found) recent += id >= kAll - 2 * counters.size();
  EXPECT_TRUE(recent + 3 >= counters.size() * 9 / 10);
}

TEST(AtItsBudgetForgetsEqualsByChanceInAllPlaces) {
  CounterBudget budget(64 << 10);
  CounterMap counters(kSalt, 0, &budget);
  for (int64_t id = 0; id < 100000; ++id) Add(&counters, id, 1, 0);
  // Where a counter lies in its page, in eighths.
  constexpr int kParts = 8;
  int64_t in_part[kParts] = {};
  for (const auto& [id, counter] : CopyOf(&counters)) {
    ++in_part[HashOf(id).place >> 61];
  }
  for (const int64_t of_part : in_part) {
    EXPECT_TRUE(of_part > counters.size() / kParts * 4 / 5);
    EXPECT_TRUE(of_part < counters.size() / kParts * 6 / 5);
  }
}

TEST(LoadedAndForgottenCountersAreNotListed) {
  CounterMap counters(kSalt, 0, &no_limit);
  counters.Load(HashOf(3), {3, 4, 2048});
  Add(&counters, 5, 1, 0);
  counters.ForgetTouches();
  Counts none;
  EXPECT_EQ(CutOnto(&counters, 1, true, false, &none), 0);
  EXPECT_EQ(counters.Count(HashOf(3), 3, 0), 4u);
  counters.Load(HashOf(3), {3, 0, 0});
  EXPECT_EQ(counters.Count(HashOf(3), 3, 0), 0u);
  counters.Clear();
  EXPECT_EQ(counters.size(), 0);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
