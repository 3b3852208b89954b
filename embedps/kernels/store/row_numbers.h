// A set of row numbers of a stripe.
#ifndef EMBEDPS_KERNELS_STORE_ROW_NUMBERS_H_
#define EMBEDPS_KERNELS_STORE_ROW_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "embedps/kernels/store/page_pool.h"

namespace embedps {

// A bit per row number, in blocks of 1024 that are there once one of their numbers is: at most a
// byte for 8 rows, however many are in it, and the numbers come in order. The blocks have the size
// of lists' (block_list.h). The memory is the pool's too: a set that ends without Clear leaves it.
class RowNumbers {
 public:
  explicit RowNumbers(PagePool* pool) : pool_(pool) {}
  RowNumbers(const RowNumbers&) = delete;
  RowNumbers& operator=(const RowNumbers&) = delete;

  bool empty() const { return num_blocks_ == 0; }

  void Insert(uint32_t number) {
    const size_t at = number / kPerBlock;
    if (at >= blocks_.size()) blocks_.resize(at + 1);
    if (blocks_[at] == nullptr) {
      blocks_[at] = reinterpret_cast<Word*>(pool_->Allocate(PagePool::kBlockBytes));
      std::memset(blocks_[at], 0, PagePool::kBlockBytes);
      ++num_blocks_;
    }
    blocks_[at][number % kPerBlock / kBits] |= Word{1} << number % kBits;
  }

  // Inserts what another set of the pool has, which is empty then.
  void Merge(RowNumbers* other) {
    if (blocks_.size() < other->blocks_.size()) blocks_.resize(other->blocks_.size());
    for (size_t at = 0; at < other->blocks_.size(); ++at) {
      if (other->blocks_[at] == nullptr) continue;
      if (blocks_[at] == nullptr) {
        blocks_[at] = std::exchange(other->blocks_[at], nullptr);
        ++num_blocks_;
        continue;
      }
      for (size_t i = 0; i < kWords; ++i) blocks_[at][i] |= other->blocks_[at][i];
    }
    other->Clear();
  }

  // Returns them in order.
  std::vector<uint32_t> Numbers() const {
    size_t count = 0;
    for (const Word* block : blocks_) {
      for (size_t i = 0; block != nullptr && i < kWords; ++i) {
        count += __builtin_popcountll(block[i]);
      }
    }
    std::vector<uint32_t> numbers;
    numbers.reserve(count);
    for (size_t at = 0; at < blocks_.size(); ++at) {
      for (size_t i = 0; blocks_[at] != nullptr && i < kWords; ++i) {
        for (Word bits = blocks_[at][i]; bits != 0; bits &= bits - 1) {
          numbers.push_back(at * kPerBlock + i * kBits + __builtin_ctzll(bits));
        }
      }
    }
    return numbers;
  }

  // Empties the set; returns what it had, in order.
  std::vector<uint32_t> Take() {
    std::vector<uint32_t> numbers = Numbers();
    Clear();
    return numbers;
  }

  void Clear() {
    for (Word* block : blocks_) {
      if (block != nullptr) pool_->Free(reinterpret_cast<char*>(block), PagePool::kBlockBytes);
    }
    std::vector<Word*>().swap(blocks_);
    num_blocks_ = 0;
  }

  // Exchanges the numbers of two sets of a pool.
  void Swap(RowNumbers* other) {
    blocks_.swap(other->blocks_);
    std::swap(num_blocks_, other->num_blocks_);
  }

  size_t MemoryBytes() const {
    return num_blocks_ * PagePool::kBlockBytes + blocks_.capacity() * sizeof(Word*);
  }

 private:
  using Word = uint64_t;
  static constexpr size_t kBits = 64;
  static constexpr size_t kWords = PagePool::kBlockBytes / sizeof(Word);
  static constexpr size_t kPerBlock = kWords * kBits;

  PagePool* const pool_;
  std::vector<Word*> blocks_;
  size_t num_blocks_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_NUMBERS_H_
