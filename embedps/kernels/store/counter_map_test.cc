#include "embedps/kernels/store/counter_map.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr uint64_t kSalt = 0x1234;

uint64_t HashOf(int64_t id) { return RowHash(kSalt, id); }

using Counts = std::map<int64_t, std::pair<uint32_t, uint32_t>>;  // id to count and last step

Counts CopyOf(const CounterMap& counters) {
  Counts found;
  for (size_t at = 0; counters.CopyPage(
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
  counters->TakeErased(drop_pending, !all, apply);
  return records;
}

TEST(EqualsAMapUnderGrowthAndRemoval) {
  CounterMap counters(kSalt, 0);
  Counts model;
  std::mt19937_64 random(5);
  for (int i = 0; i < 200000; ++i) {
    const auto id = static_cast<int64_t>(random() % 20000);
    const uint32_t step = static_cast<uint32_t>(i) << 2;
    if (random() % 3 == 0) {
      counters.Erase(HashOf(id), id);
      model.erase(id);
    } else {
      const uint32_t count = counters.Count(HashOf(id), id, step) + 1;
      EXPECT_EQ(count, (model.count(id) ? model[id].first : 0) + 1);
      counters.Set(HashOf(id), id, count % 256 == 0 ? 1 : count, step);
      model[id] = {count % 256 == 0 ? 1 : count, step >> 10 << 10};
    }
  }
  EXPECT_EQ(counters.size(), static_cast<int64_t>(model.size()));
  EXPECT_TRUE(CopyOf(counters) == model);
}

TEST(CounterTakesAtMost18Bytes) {
  CounterMap counters(kSalt, 0);
  int64_t size = 0;
  for (int64_t id = 0; id < 400000; ++id) {
    counters.Set(HashOf(id), id, 1, 0);
    ++size;
    // At every size from some hundred on, not only where pages happen to be full.
    if (size >= 500 && size % 997 == 0) EXPECT_TRUE(counters.MemoryBytes() <= 18 * size);
  }
  EXPECT_TRUE(counters.MemoryBytes() <= 18 * size);
}

TEST(CounterExpiresAndItsMemoryIsUsedAgain) {
  CounterMap counters(kSalt, 2048);
  for (int64_t id = 0; id < 1000; ++id) counters.Set(HashOf(id), id, 2, 1024);
  EXPECT_EQ(counters.Count(HashOf(7), 7, 1024 + 2048 + 1023), 2u);
  EXPECT_EQ(counters.Count(HashOf(7), 7, 1024 + 3072), 0u);
  const int64_t before = counters.MemoryBytes();
  for (int64_t id = 1000; id < 3000; ++id) counters.Set(HashOf(id), id, 1, 100 * 1024);
  EXPECT_TRUE(counters.size() < 2500);
  EXPECT_TRUE(counters.MemoryBytes() < 3 * before);
  EXPECT_EQ(counters.Count(HashOf(7), 7, 100 * 1024), 0u);
}

TEST(DeltasGiveWhatChangedAndGiveItAgainUntilItIsCommitted) {
  CounterMap counters(kSalt, 0);
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
        counters.Set(HashOf(id), id, 1 + random() % 200, 0);
      }
    }
    const bool all = round % 7 == 3;
    Counts saved = followed;
    if (all) saved.clear();
    const int64_t records = CutOnto(&counters, ++number, committed, all, &saved);
    EXPECT_TRUE(saved == CopyOf(counters));
    if (committed && !all) {
      EXPECT_TRUE(records <= static_cast<int64_t>(2 * touched.size()));
    }
    committed = random() % 3 != 0;
    if (committed) followed = saved;
  }
}

TEST(PageThatIsSplitDuringACutIsGivenOnce) {
  CounterMap counters(kSalt, 0);
  for (int64_t id = 0; id < 500; ++id) counters.Set(HashOf(id), id, 1, 0);
  Counts first;
  size_t at = 0;
  const auto apply = [&](const CounterRecord& c) { first[c.id] = {c.count, c.last_step}; };
  EXPECT_TRUE(counters.NextPage(1, true, false, &at, apply));
  EXPECT_EQ(first.size(), size_t{500});
  // The only page splits after its visit. What comes now belongs to the next cut, and what was
  // given stays pending.
  for (int64_t id = 500; id < 2000; ++id) counters.Set(HashOf(id), id, 1, 0);
  while (counters.NextPage(1, true, false, &at, apply)) {
  }
  EXPECT_EQ(first.size(), size_t{500});
  Counts again;
  CutOnto(&counters, 2, /*drop_pending=*/false, /*all=*/false, &again);
  EXPECT_EQ(again.size(), size_t{2000});
}

TEST(LoadedAndForgottenCountersAreNotListed) {
  CounterMap counters(kSalt, 0);
  counters.Load(HashOf(3), {3, 4, 2048});
  counters.Set(HashOf(5), 5, 1, 0);
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
