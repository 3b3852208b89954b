#include "embedps/kernels/store/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

TEST(PiecesAreApartAlignedAndKeepWhatIsWritten) {
  PagePool pool;
  const size_t sizes[] = {1, 64, 100, 16392, 86016, 5 << 20};
  std::vector<std::pair<char*, size_t>> pieces;
  for (int i = 0; i < 60; ++i) {
    const size_t bytes = sizes[i % 6];
    char* piece = pool.Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, uintptr_t{0});
    std::memset(piece, i, bytes);
    pieces.push_back({piece, bytes});
  }
  for (int i = 0; i < 60; ++i) {
    const auto [piece, bytes] = pieces[i];
    EXPECT_EQ(std::count(piece, piece + bytes, static_cast<char>(i)),
              static_cast<std::ptrdiff_t>(bytes));
  }
}

TEST(WhatIsGivenBackIsGivenOutAgain) {
  PagePool pool;
  std::set<char*> pieces;
  for (int i = 0; i < 10; ++i) pieces.insert(pool.Allocate(1000));
  pool.Allocate(2000);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
  for (char* piece : pieces) pool.Free(piece, 1000);
  EXPECT_EQ(pool.SpareBytes(), int64_t{10 * 1024});
  std::set<char*> again;
  for (int i = 0; i < 10; ++i) again.insert(pool.Allocate(1000));
  EXPECT_TRUE(again == pieces);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
}

TEST(BlocksAreCutFromLargerPiecesThatWereFreed) {
  constexpr size_t kBlocks = 8;
  PagePool pool;
  char* const piece = pool.Allocate(kBlocks * PagePool::kBlockBytes);
  pool.Free(piece, kBlocks * PagePool::kBlockBytes);
  std::set<char*> blocks;
  for (size_t i = 0; i < kBlocks; ++i) blocks.insert(pool.Allocate(PagePool::kBlockBytes));
  EXPECT_EQ(blocks.size(), kBlocks);
  EXPECT_EQ(*blocks.begin(), piece);
  EXPECT_EQ(*blocks.rbegin(), piece + (kBlocks - 1) * PagePool::kBlockBytes);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
  EXPECT_TRUE(blocks.count(pool.Allocate(PagePool::kBlockBytes)) == 0);
}

TEST(NoPagesAreTouchedAheadOfWhatIsTakenElsewhere) {
  constexpr size_t kPiece = 64 << 10, kTaken = PagePool::kTouchFromBytes + (4 << 20);
  PagePool pool;
  pool.SetMostBytes(2 * kTaken);
  pool.AddElsewhere(kTaken);
  for (size_t taken = 0; taken < kTaken; taken += kPiece) pool.Allocate(kPiece);
  EXPECT_EQ(pool.SpareBytes(), int64_t{0});
  pool.AddElsewhere(-static_cast<int64_t>(kTaken));
  pool.Allocate(kPiece);
  while (pool.SpareBytes() == 0) std::this_thread::yield();
}

TEST(PagesAreTouchedBeforeTheyAreAllocated) {
  constexpr size_t kPiece = 64 << 10;
  PagePool pool;
  for (size_t taken = 0; taken < PagePool::kTouchFromBytes; taken += kPiece) pool.Allocate(kPiece);
  while (pool.SpareBytes() < int64_t{4 << 20}) std::this_thread::yield();
  // The pages of the next MiB are in memory, though nobody has written to them.
  for (size_t taken = 0; taken < 1 << 20; taken += kPiece) {
    char* piece = pool.Allocate(kPiece);
    std::vector<unsigned char> present(kPiece / 4096);
    EXPECT_EQ(mincore(piece, kPiece, present.data()), 0);
    for (const unsigned char page : present) EXPECT_EQ(page & 1, 1);
  }
}

TEST(PagesAreMadeUnderWritersThatOutrunTheThread) {
  constexpr size_t kPiece = 86016;
  PagePool pool;
  std::vector<std::vector<char*>> pieces(2);
  std::vector<std::thread> writers;
  for (int w = 0; w < 2; ++w) {
    writers.emplace_back([&pool, &mine = pieces[w], w] {
      for (int i = 0; i < 300; ++i) {
        mine.push_back(pool.Allocate(kPiece));
        for (size_t at = 0; at < kPiece; at += 512) mine.back()[at] = static_cast<char>(i + w);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  for (int w = 0; w < 2; ++w) {
    for (int i = 0; i < 300; ++i) {
      for (size_t at = 0; at < kPiece; at += 512) {
        EXPECT_EQ(pieces[w][i][at], static_cast<char>(i + w));
      }
    }
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
