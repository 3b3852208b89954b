#include "embedps/kernels/retrieval/item_index.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using Items = std::map<int64_t, std::vector<float>>;
using Found = std::vector<std::pair<int64_t, float>>;

void ThreadsFor(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kThreads = 3;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) {
    const int64_t begin = n * i / kThreads, end = n * (i + 1) / kThreads;
    if (begin < end) threads.emplace_back([&work, begin, end] { work(begin, end); });
  }
  for (std::thread& thread : threads) thread.join();
}

// A vector of small integers: products and sums are exact in any order.
std::vector<float> MakeVector(int dim, std::mt19937* random) {
  std::vector<float> made(dim);
  for (float& value : made) value = static_cast<float>(static_cast<int>((*random)() % 9) - 4);
  return made;
}

std::shared_ptr<const ItemIndex> Put(const ItemIndex& index, const Items& items,
                                     const std::vector<int64_t>& removed) {
  std::vector<int64_t> ids;
  std::vector<float> vectors;
  for (const auto& [id, vector] : items) {
    ids.push_back(id);
    vectors.insert(vectors.end(), vector.begin(), vector.end());
  }
  return index.Changed(ids.data(), ids.size(), vectors.data(), removed.data(), removed.size());
}

Found Search(const ItemIndex& index, const std::vector<float>& query, int k,
             const std::vector<int64_t>& seen = {}, const std::vector<int64_t>* allowed = nullptr) {
  ItemFilter filter;
  filter.seen = seen.data();
  filter.num_seen = seen.size();
  if (allowed != nullptr) {
    filter.is_limited = true;
    filter.allowed = allowed->data();
    filter.num_allowed = allowed->size();
  }
  std::vector<float> scores(k);
  std::vector<int64_t> ids(k);
  index.Search(query.data(), 1, k, {filter}, ThreadsFor, scores.data(), ids.data());
  Found found;
  for (int i = 0; i < k; ++i) found.emplace_back(ids[i], scores[i]);
  return found;
}

// By sorting all items.
Found Reference(const Items& items, const std::vector<float>& query, int k,
                const std::set<int64_t>& seen = {}, const std::set<int64_t>* allowed = nullptr) {
  Found found;
  for (const auto& [id, vector] : items) {
    if (seen.count(id) || (allowed != nullptr && !allowed->count(id))) continue;
    float score = 0;
    for (size_t i = 0; i < query.size(); ++i) score += query[i] * vector[i];
    found.emplace_back(id, score);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  found.resize(k, {kNoItem, kNoScore});
  return found;
}

TEST(TheBestItemsAreThoseOfSorting) {
  std::mt19937 random(1);
  for (const int dim : {1, 3, 64}) {
    for (const int n : {1, 63, 64, 65, 3000, 70000}) {
      if (dim == 64 && n == 70000) continue;
      Items items;
      for (int i = 0; i < n; ++i) items[i * 7 - 50] = MakeVector(dim, &random);
      const auto index = Put(ItemIndex(dim), items, {});
      EXPECT_EQ(index->num_items(), n);
      const std::vector<float> query = MakeVector(dim, &random);
      for (const int k : {1, 10, 100}) {
        EXPECT_TRUE(Search(*index, query, k) == Reference(items, query, k));
      }
    }
  }
}

// If k is the number of items, then each is scored; else only those that may be among the best.
TEST(FewAreTheFirstOfAll) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int dim : {1, 5, 64}) {
    Items items;
    for (int i = 0; i < 5000; ++i) {
      std::vector<float> vector(dim);
      for (float& value : vector) value = normal(random) * (i % 7 == 0 ? 30.0f : 1.0f);
      items[i] = vector;
    }
    items[17][0] = infinity;
    items[4000][0] = -infinity;
    items[100] = std::vector<float>(dim, 1e-42f);
    items[101] = items[102] = std::vector<float>(dim, 0.0f);
    const auto index = Put(ItemIndex(dim), items, {});
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<float> query(dim);
      for (float& value : query) value = turn == 0 ? 0.0f : normal(random);
      const Found all = Search(*index, query, items.size());
      for (const int k : {1, 10, 300}) {
        EXPECT_TRUE(Search(*index, query, k) == Found(all.begin(), all.begin() + k));
      }
    }
  }
}

TEST(FiltersLeaveOut) {
  std::mt19937 random(2);
  Items items;
  std::vector<int64_t> all;
  for (int i = 0; i < 300; ++i) {
    items[i] = MakeVector(4, &random);
    all.push_back(i);
  }
  const auto index = Put(ItemIndex(4), items, {});
  const std::vector<float> query = MakeVector(4, &random);
  const Found best = Search(*index, query, 5);
  const std::vector<int64_t> seen = {best[0].first, best[2].first, best[0].first, -9, 1 << 20};
  const std::set<int64_t> seen_set(seen.begin(), seen.end());
  EXPECT_TRUE(Search(*index, query, 20, seen) == Reference(items, query, 20, seen_set));
  const Found none(3, {kNoItem, kNoScore});
  EXPECT_TRUE(Search(*index, query, 3, all) == none);
  const std::vector<int64_t> allowed = {7, 299, 7, 64, 63, 5000, best[0].first};
  const std::set<int64_t> allowed_set(allowed.begin(), allowed.end());
  EXPECT_TRUE(Search(*index, query, 9, {}, &allowed) ==
              Reference(items, query, 9, {}, &allowed_set));
  EXPECT_TRUE(Search(*index, query, 9, seen, &allowed) ==
              Reference(items, query, 9, seen_set, &allowed_set));
  const std::vector<int64_t> nothing;
  EXPECT_TRUE(Search(*index, query, 3, {}, &nothing) == none);
}

TEST(AChangeLeavesTheIndexBeforeIt) {
  std::mt19937 random(3);
  Items items;
  auto index = std::make_shared<const ItemIndex>(2);
  const std::vector<float> query = {1, 2};
  for (int round = 0; round < 30; ++round) {
    const Items before = items;
    const auto index_before = index;
    Items put;
    std::vector<int64_t> removed;
    for (int i = 0; i < 40; ++i) {
      const int64_t id = static_cast<int64_t>(random() % 200);
      if (random() % 3 == 0) {
        removed.push_back(id);
      } else {
        put[id] = MakeVector(2, &random);
      }
    }
    for (const int64_t id : removed) items.erase(id);
    for (const auto& [id, vector] : put) items[id] = vector;
    index = Put(*index, put, removed);
    EXPECT_EQ(index->num_items(), static_cast<int64_t>(items.size()));
    EXPECT_TRUE(Search(*index, query, 250) == Reference(items, query, 250));
    EXPECT_TRUE(Search(*index_before, query, 250) == Reference(before, query, 250));
  }
  // Slots of removed items are used again.
  EXPECT_TRUE(index->num_bytes() < 8 * (64 * 2 * 4 + 1024) + 16384);
}

TEST(SearchesGoOnBesideChanges) {
  std::mt19937 random(4);
  Items items;
  for (int i = 0; i < 1000; ++i) items[i] = MakeVector(8, &random);
  auto index = Put(ItemIndex(8), items, {});
  const std::vector<float> query = MakeVector(8, &random);
  const Found expected = Reference(items, query, 10);
  std::thread searching([held = index, &query, &expected] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(Search(*held, query, 10) == expected);
  });
  for (int i = 0; i < 50; ++i) index = Put(*index, {{i, MakeVector(8, &random)}}, {i + 500});
  searching.join();
}

TEST(OfAnIdThatComesTwiceTheLastCounts) {
  const std::vector<int64_t> ids = {4, 5, 4};
  const std::vector<float> vectors = {1, 2, 3};
  const auto index = ItemIndex(1).Changed(ids.data(), 3, vectors.data(), nullptr, 0);
  EXPECT_EQ(index->num_items(), 2);
  EXPECT_TRUE(Search(*index, {1}, 2) == (Found{{4, 3}, {5, 2}}));
  std::vector<float> read(3, -1);
  const std::vector<int64_t> wanted = {5, 6, 4};
  index->Read(wanted.data(), 3, read.data());
  EXPECT_EQ(read, (std::vector<float>{2, 0, 3}));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
