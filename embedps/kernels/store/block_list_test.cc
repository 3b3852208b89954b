#include "embedps/kernels/store/block_list.h"

#include <cstdint>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

template <typename T>
void ExpectAsAVector() {
  PagePool pool;
  for (const int count : {0, 1, 14, 15, 16, 29, 30, 31, 5000}) {
    BlockList<T> list(&pool), other(&pool);
    std::vector<T> twin;
    for (int i = 0; i < count; ++i) {
      list.Append(static_cast<T>(i * 7919));
      twin.push_back(static_cast<T>(i * 7919));
    }
    list.Append(std::vector<T>{3, 2, 1});
    twin.insert(twin.end(), {3, 2, 1});
    list.Swap(&other);
    EXPECT_TRUE(list.empty());
    EXPECT_EQ(list.MemoryBytes(), size_t{0});
    EXPECT_EQ(other.size(), twin.size());
    EXPECT_TRUE(other.MemoryBytes() <= twin.size() * sizeof(T) * 16 / 15 + PagePool::kBlockBytes);
    EXPECT_TRUE(other.Take() == twin);
    EXPECT_TRUE(other.empty());
    EXPECT_TRUE(other.Take().empty());
    other.Append(T{4});
    EXPECT_TRUE(other.Take() == std::vector<T>{4});
  }
}

TEST(AListHasWhatAVectorWouldHave) {
  ExpectAsAVector<uint32_t>();
  ExpectAsAVector<int64_t>();
}

TEST(WhatOneListFreesAnyOtherUses) {
  PagePool pool;
  BlockList<int64_t> ids(&pool);
  for (int64_t id = 0; id < 1500; ++id) ids.Append(id);
  const auto bytes = static_cast<int64_t>(ids.MemoryBytes());
  ids.Take();
  EXPECT_EQ(pool.SpareBytes(), bytes);
  BlockList<uint32_t> rows(&pool);
  for (uint32_t row = 0; row < 3000; ++row) rows.Append(row);
  EXPECT_EQ(static_cast<int64_t>(rows.MemoryBytes()), bytes);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
