// A list in small blocks of a page pool.
#ifndef EMBEDPS_KERNELS_STORE_BLOCK_LIST_H_
#define EMBEDPS_KERNELS_STORE_BLOCK_LIST_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "embedps/kernels/store/page_pool.h"

namespace embedps {

// A list that grows at its end. All lists of a pool have blocks of one size: what one frees, any
// other uses. Vectors of the heap would come to lie between the buffers of steps, so that the next
// buffer needs new pages although as many are free. The memory is the pool's, which outlives the
// list; a list that ends without Take leaves it there.
template <typename T>
class BlockList {
 public:
  explicit BlockList(PagePool* pool) : pool_(pool) {}
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Whether the next value needs another block.
  bool needs_block() const { return size_ % kPerBlock == 0; }

  void Append(T value) {
    if (needs_block()) AddBlock();
    last_->values[size_++ % kPerBlock] = value;
  }
  void Append(const std::vector<T>& values) {
    for (const T value : values) Append(value);
  }

  // Empties the list and frees its blocks; returns what it had.
  std::vector<T> Take() {
    std::vector<T> values;
    values.reserve(size_);
    for (Block* block = first_; block != nullptr;) {
      const size_t count = std::min(kPerBlock, size_ - values.size());
      values.insert(values.end(), block->values, block->values + count);
      char* const taken = reinterpret_cast<char*>(std::exchange(block, block->next));
      pool_->Free(taken, sizeof(Block));
    }
    first_ = last_ = nullptr;
    size_ = 0;
    return values;
  }

  // Exchanges the values of two lists of a pool.
  void Swap(BlockList* other) {
    std::swap(first_, other->first_);
    std::swap(last_, other->last_);
    std::swap(size_, other->size_);
  }

  size_t MemoryBytes() const { return (size_ + kPerBlock - 1) / kPerBlock * sizeof(Block); }

 private:
  static constexpr size_t kPerBlock = (PagePool::kBlockBytes - sizeof(void*)) / sizeof(T);
  struct Block {
    Block* next;
    T values[kPerBlock];
  };
  static_assert(sizeof(Block) == PagePool::kBlockBytes);

  void AddBlock() {
    auto* block = reinterpret_cast<Block*>(pool_->Allocate(sizeof(Block)));
    block->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = block;
    last_ = block;
  }

  PagePool* const pool_;
  Block* first_ = nullptr;
  Block* last_ = nullptr;
  size_t size_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_BLOCK_LIST_H_
