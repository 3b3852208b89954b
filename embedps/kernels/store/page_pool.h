// Memory for the rows and indexes of a store, whose pages are made before they are used.
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

// Gives out pieces of regions that it maps. The first touch of a page is what a growing table's
// lookups would wait for, under a stripe's lock: the host of a virtual machine takes 10 us to give
// a page, 8 ms a huge one, and now and then 100 ms. So from kMakeFromBytes on a thread touches what
// is to be given out next. Larger regions ask for huge pages: an id of a large table otherwise
// misses two translations besides its row and its index entry.
class PagePool {
 public:
  static constexpr size_t kMakeFromBytes = 8 << 20;  // taken; a small store has no thread

  PagePool() = default;
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // `bytes` at a multiple of 64, of any content, until they are given back or the pool ends.
  char* Take(size_t bytes);

  // Takes back what Take(bytes) gave, to be given out again.
  void GiveBack(char* piece, size_t bytes);

  // Of the pages that were made or given out, what no piece holds.
  int64_t SpareBytes() const;

 private:
  struct Region {
    char* mapped;
    size_t mapped_bytes;
    char* begin;  // at a multiple of a huge page
    size_t bytes;
    size_t taken;  // given out, from the beginning
    size_t made;   // touched, from the beginning; less than `taken` where the thread is behind
  };

  void AddRegion(size_t least_bytes);
  size_t AheadBytes() const;
  size_t WantedBytes() const;
  void MakePages();

  mutable std::mutex mutex_;  // guards everything below but the thread
  std::vector<Region> regions_;
  size_t current_ = 0;  // the region that pieces are taken of
  size_t held_bytes_ = 0;
  size_t largest_piece_ = 0;
  std::map<size_t, std::vector<char*>> given_back_;  // by size
  bool ended_ = false;
  std::condition_variable wanted_;
  std::thread maker_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_PAGE_POOL_H_
