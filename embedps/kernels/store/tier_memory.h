// What the stores of a server whose coldest rows are on disk share: the limit of their memory, and
// the threads that read.
#ifndef EMBEDPS_KERNELS_STORE_TIER_MEMORY_H_
#define EMBEDPS_KERNELS_STORE_TIER_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "embedps/kernels/store/page_pool.h"
#include "embedps/kernels/store/read_pool.h"

namespace embedps {

struct TierConfig {
  int64_t max_memory_bytes = 0;
  std::string directory;             // of the spill files, on a local disk
  int64_t segment_bytes = 16 << 20;  // of a spill file
  int64_t buffer_bytes = 256 << 10;  // of what is written at once
  int num_readers = 8;
};

// Counts the bytes of heads, indexes and lists, which the pool has, and of the floats in memory.
// The former grow with all rows. What they need more, the latter give back.
class TierMemory {
 public:
  explicit TierMemory(TierConfig config)
      : config_(std::move(config)), readers_(config_.num_readers) {
    pool_.SetMostAheadBytes(kAheadBytes);
  }
  TierMemory(const TierMemory&) = delete;
  TierMemory& operator=(const TierMemory&) = delete;

  const TierConfig& config() const { return config_; }
  PagePool* pool() { return &pool_; }
  ReadPool* readers() { return &readers_; }

  int64_t used_bytes() const {
    return pool_.UsedBytes() + taken_bytes_.load(std::memory_order_relaxed);
  }
  bool IsOver() const { return used_bytes() > config_.max_memory_bytes; }

  // Takes bytes; returns false, and takes nothing, if the limit would be passed.
  bool Take(int64_t bytes) {
    MustTake(bytes);
    if (!IsOver()) return true;
    Release(bytes);
    return false;
  }
  void MustTake(int64_t bytes) { taken_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void Release(int64_t bytes) { MustTake(-bytes); }

  // What the tables that stores have been made for need at least.
  int64_t AddLeast(int64_t bytes) { return least_bytes_.fetch_add(bytes) + bytes; }
  void AddStores(int number) { num_stores_.fetch_add(number); }
  int num_stores() const { return num_stores_.load(); }

 private:
  static constexpr size_t kAheadBytes = 4 << 20;

  const TierConfig config_;
  std::atomic<int64_t> taken_bytes_{0}, least_bytes_{0};
  std::atomic<int> num_stores_{0};
  PagePool pool_;
  ReadPool readers_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_TIER_MEMORY_H_
