// Tests that the stores of a server stay below the limit that they share.
#include "embedps/kernels/store/server_memory.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_store_testing.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr int64_t kLimit = 8 << 20;

std::unique_ptr<RowStore> MakeStore(const std::shared_ptr<ServerMemory>& memory, int dim,
                                    int num_tables) {
  RowStoreConfig config = MakeConfig(dim, num_tables);
  config.server_memory = memory;
  return std::make_unique<RowStore>(config);
}

int64_t MemoryOf(const std::vector<std::unique_ptr<RowStore>>& stores) {
  int64_t bytes = 0;
  for (const auto& store : stores) bytes += store->Stats().memory_bytes;
  return bytes;
}

TEST(TablesOfAllStoresStayBelowOneLimit) {
  const auto memory = std::make_shared<ServerMemory>(kLimit);
  std::vector<std::unique_ptr<RowStore>> stores;
  stores.push_back(MakeStore(memory, 4, 2));
  stores.push_back(MakeStore(memory, 32, 1));
  std::vector<Rows> chains(2);
  std::vector<int64_t> since;
  for (int s = 0; s < 2; ++s) {
    since.push_back(CutOnto(stores[s].get(), CutKind::kBase, -1, &chains[s]));
  }
  uint32_t step = 1;
  for (int64_t first = 0; first < 150'000; first += 1000, ++step) {
    const auto ids = Range(first, first + 1000);
    const Batch narrow{ids, Range(first, first + 100)}, wide{ids};
    Lookup(stores[0].get(), narrow);
    Update(stores[0].get(), narrow, 1, 1, step);
    Lookup(stores[1].get(), wide);
    Update(stores[1].get(), wide, 1, 1, step);
    EXPECT_TRUE(memory->charged_bytes() <= kLimit);
    EXPECT_TRUE(MemoryOf(stores) <= kLimit);
    if (step % 20 != 0) continue;
    for (int s = 0; s < 2; ++s) {
      since[s] = CutOnto(stores[s].get(), CutKind::kDelta, since[s], &chains[s]);
    }
  }
  for (int s = 0; s < 2; ++s) {
    CutOnto(stores[s].get(), CutKind::kDelta, since[s], &chains[s]);
    EXPECT_TRUE(chains[s] == BaseOf(stores[s].get()));
  }
  // Each table has rows, and the limit is used.
  EXPECT_TRUE(NumRows(*stores[0], 0) > 10'000);
  EXPECT_TRUE(NumRows(*stores[0], 1) > 1'000);
  EXPECT_TRUE(NumRows(*stores[1], 0) > 10'000);
  EXPECT_TRUE(memory->charged_bytes() > kLimit * 9 / 10);
}

TEST(WhatIsClearedAndDroppedIsFreeAgain) {
  const auto memory = std::make_shared<ServerMemory>(kLimit);
  const auto first = MakeStore(memory, 8, 1);
  auto second = MakeStore(memory, 8, 1);
  const int64_t empty = memory->charged_bytes();
  Lookup(first.get(), Batch{Range(0, 20'000)});
  EXPECT_TRUE(memory->charged_bytes() > empty);
  first->Clear();
  EXPECT_EQ(memory->charged_bytes(), empty);
  Lookup(second.get(), Batch{Range(0, 20'000)});
  second.reset();
  EXPECT_EQ(memory->charged_bytes(), empty / 2);
}

TEST(ATablesOwnLimitHoldsBelowTheServers) {
  const auto memory = std::make_shared<ServerMemory>(kLimit);
  RowStoreConfig config = MakeConfig(8, 2);
  config.tables[0].eviction.max_bytes = 1 << 20;
  config.tables[1].max_rows = 500;
  config.server_memory = memory;
  RowStore store(config);
  Lookup(&store, Batch{Range(0, 100'000), Range(0, 1000)});
  EXPECT_TRUE(store.Stats().table_bytes[0] <= 1 << 20);
  EXPECT_EQ(NumRows(store, 1), 500);  // its capacity refuses before the limit displaces
  EXPECT_EQ(store.Stats().rejected_inserts, 500);
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
