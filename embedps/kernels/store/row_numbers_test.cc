#include "embedps/kernels/store/row_numbers.h"

#include <cstdint>
#include <set>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

std::vector<uint32_t> Sorted(const std::set<uint32_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

TEST(NumbersAreInOrderAndEachOnceHoweverManyTheyAre) {
  uint64_t random = 1;
  for (const uint32_t limit : {1u, 63u, 64u, 65u, 1023u, 1024u, 1025u, 5000u, 200000u}) {
    for (const uint32_t count : {0u, 1u, limit / 2048, limit / 64, limit, 2 * limit}) {
      PagePool pool;
      RowNumbers first(&pool), second(&pool);
      std::set<uint32_t> of_first = {0, limit - 1}, of_second;
      for (const uint32_t number : {limit - 1, 0u, limit - 1}) first.Insert(number);
      for (uint32_t i = 0; i < count; ++i) {
        random = Mix64(random);
        const uint32_t number = (random >> 1) % limit;
        (random & 1 ? first : second).Insert(number);
        (random & 1 ? of_first : of_second).insert(number);
      }
      EXPECT_TRUE(first.Numbers() == Sorted(of_first));
      EXPECT_TRUE(second.Numbers() == Sorted(of_second));
      EXPECT_EQ(second.empty(), of_second.empty());
      EXPECT_TRUE(first.MemoryBytes() <= (limit / 1024 + 1) * (128 + 2 * sizeof(char*)));
      first.Merge(&second);
      of_first.merge(of_second);
      EXPECT_TRUE(second.empty());
      first.Swap(&second);
      EXPECT_TRUE(first.Numbers().empty());
      EXPECT_TRUE(second.Take() == Sorted(of_first));
      EXPECT_TRUE(second.empty());
      EXPECT_EQ(first.MemoryBytes() + second.MemoryBytes(), size_t{0});
      second.Insert(7);
      EXPECT_TRUE(second.Take() == std::vector<uint32_t>{7});
    }
  }
}

TEST(WhatASetFreesAnyOtherUses) {
  PagePool pool;
  RowNumbers first(&pool), second(&pool);
  for (uint32_t number = 0; number < 5000; number += 500) first.Insert(number);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
  first.Clear();
  EXPECT_EQ(pool.SpareBytes(), int64_t{5 * PagePool::kBlockBytes});
  for (uint32_t number = 0; number < 5000; ++number) second.Insert(number);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
  for (uint32_t number = 0; number < 9000; ++number) first.Insert(number);
  second.Merge(&first);  // of which some blocks are taken over, and others freed
  EXPECT_EQ(second.Numbers().size(), size_t{9000});
  EXPECT_EQ(pool.SpareBytes(), int64_t{5 * PagePool::kBlockBytes});
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
