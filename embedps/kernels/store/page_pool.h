// Memory for the rows and indexes of a store. It touches pages before they are needed.
#ifndef EMBEDPS_KERNELS_STORE_PAGE_POOL_H_
#define EMBEDPS_KERNELS_STORE_PAGE_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

// Allocates pieces of regions that it maps. Lookups of a growing table would otherwise wait for the
// first touch of a page under a stripe's lock: the host of a virtual machine takes 10 us for a
// page, 8 ms for a huge page, and sometimes 100 ms. So a thread touches the next pages ahead, once
// kTouchFromBytes are allocated. Larger regions ask for huge pages: without them each id of a large
// table costs two address translations besides its row and its index entry.
class PagePool {
 public:
  static constexpr size_t kTouchFromBytes = 8 << 20;  // a smaller pool has no thread
  static constexpr size_t kBlockBytes = 128;          // of a list's blocks (block_list.h)

  PagePool() = default;
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns `bytes` of memory at a multiple of 64, with any content. They are valid until Free, or
  // as long as the pool. A block, or a smaller piece, may be a part of a larger one that was freed.
  char* Allocate(size_t bytes);

  // Frees a piece that Allocate(bytes) returned.
  void Free(char* piece, size_t bytes);

  // Sets how many bytes of pieces, freed ones included, there will be at most: it touches no pages
  // ahead of these, and asks for no huge pages where one would be more than a hundredth. Called
  // before Allocate.
  void SetMostBytes(size_t bytes);

  // Counts bytes that something else takes of this most; less than 0 if it gives them back.
  void AddElsewhere(int64_t bytes) { elsewhere_.fetch_add(bytes, std::memory_order_relaxed); }

  // Sets how many bytes of pages it touches ahead at most. Called before Allocate.
  void SetMostAheadBytes(size_t bytes);

  // Counts the bytes of pieces.
  int64_t UsedBytes() const { return used_now_.load(std::memory_order_relaxed); }

  // Counts the bytes of touched or allocated pages that no piece uses.
  int64_t SpareBytes() const;

 private:
  struct Region {
    char* mapped;
    size_t mapped_bytes;
    char* begin;  // at a multiple of a huge page
    size_t bytes;
    size_t allocated;  // from the beginning
    size_t touched;    // from the beginning; less than `allocated` if the thread is behind
  };

  struct FreePiece {
    FreePiece* next;
  };

  void AddRegion(size_t min_bytes) EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  char* TakeFreed(size_t bytes) EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddFreed(char* piece, size_t bytes) EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveRegion(Region* region) EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Bytes that are touched but not allocated: how many there are, and how many there should be.
  size_t AheadBytes() const EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t TargetAheadBytes() const EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TouchAhead();

  mutable Mutex mutex_;
  std::vector<Region> regions_ GUARDED_BY(mutex_);
  size_t current_ GUARDED_BY(mutex_) = 0;  // the region to allocate from
  size_t used_bytes_ GUARDED_BY(mutex_) = 0;
  size_t allocated_bytes_ GUARDED_BY(mutex_) = 0;  // of all regions
  size_t largest_piece_ GUARDED_BY(mutex_) = 0;
  size_t most_bytes_ GUARDED_BY(mutex_) = SIZE_MAX;
  size_t most_ahead_bytes_ GUARDED_BY(mutex_) = SIZE_MAX;
  std::map<size_t, FreePiece*> freed_ GUARDED_BY(mutex_);  // by size, each in a list
  bool ended_ GUARDED_BY(mutex_) = false;
  CondVar changed_;
  std::atomic<int64_t> elsewhere_{0};
  std::atomic<int64_t> used_now_{0};  // used_bytes_, for whoever has no lock
  std::thread toucher_ GUARDED_BY(mutex_);
};

// Allocates from a pool, which outlives what is allocated, for the vectors of a store.
template <typename T>
class PoolAllocator {
 public:
  using value_type = T;

  explicit PoolAllocator(PagePool* pool) : pool_(pool) {}
  template <typename U>
  explicit PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool()) {}

  T* allocate(size_t count) { return reinterpret_cast<T*>(pool_->Allocate(count * sizeof(T))); }
  void deallocate(T* values, size_t count) {
    pool_->Free(reinterpret_cast<char*>(values), count * sizeof(T));
  }

  PagePool* pool() const { return pool_; }
  friend bool operator==(const PoolAllocator& a, const PoolAllocator& b) {
    return a.pool_ == b.pool_;
  }
  friend bool operator!=(const PoolAllocator& a, const PoolAllocator& b) { return !(a == b); }

 private:
  PagePool* pool_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_PAGE_POOL_H_
