// Memory for the rows and indexes of a store. It touches pages before they are needed.
#ifndef EMBEDPS_KERNELS_STORE_PAGE_POOL_H_
#define EMBEDPS_KERNELS_STORE_PAGE_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace embedps {

// Allocates pieces of regions that it maps. Lookups of a growing table would otherwise wait for the
// first touch of a page under a stripe's lock: the host of a virtual machine takes 10 us for a
// page, 8 ms for a huge page, and sometimes 100 ms. So a thread touches the next pages ahead, once
// kTouchFromBytes are allocated. Larger regions ask for huge pages: without them each id of a large
// table costs two address translations besides its row and its index entry.
class PagePool {
 public:
  static constexpr size_t kTouchFromBytes = 8 << 20;  // a smaller pool has no thread

  PagePool() = default;
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Returns `bytes` of memory at a multiple of 64, with any content. They are valid until Free, or
  // as long as the pool.
  char* Allocate(size_t bytes);

  // Frees a piece that Allocate(bytes) returned.
  void Free(char* piece, size_t bytes);

  // Sets how many bytes the pieces will have at most: it touches no pages ahead of these, and asks
  // for no huge pages where one would be more than a hundredth. Called before Allocate.
  void SetMostBytes(size_t bytes);

  // Sets how many bytes of pages it touches ahead at most. Called before Allocate.
  void SetMostAheadBytes(size_t bytes);

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

  void AddRegion(size_t min_bytes);
  // Bytes that are touched but not allocated: how many there are, and how many there should be.
  size_t AheadBytes() const;
  size_t TargetAheadBytes() const;
  void TouchAhead();

  mutable std::mutex mutex_;  // guards everything below except the thread
  std::vector<Region> regions_;
  size_t current_ = 0;  // the region to allocate from
  size_t used_bytes_ = 0;
  size_t largest_piece_ = 0;
  size_t most_bytes_ = SIZE_MAX;
  size_t most_ahead_bytes_ = SIZE_MAX;
  std::map<size_t, std::vector<char*>> freed_;  // by size
  bool ended_ = false;
  std::condition_variable changed_;
  std::thread toucher_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_PAGE_POOL_H_
