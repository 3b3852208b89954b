// The memory that all row stores of a server share under one limit.
#ifndef EMBEDPS_KERNELS_STORE_SERVER_MEMORY_H_
#define EMBEDPS_KERNELS_STORE_SERVER_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/page_pool.h"

namespace embedps {

inline constexpr int64_t kCounterParts = 8;  // counters have one of these parts of a byte limit

// Counts the bytes that tables take, and has the pages for all but their counters. The tables of
// all stores take memory from it as they grow, each for itself. What a table has taken it keeps.
class ServerMemory {
 public:
  explicit ServerMemory(int64_t max_bytes) : max_bytes_(max_bytes) {}
  ServerMemory(const ServerMemory&) = delete;
  ServerMemory& operator=(const ServerMemory&) = delete;

  int64_t max_bytes() const { return max_bytes_; }
  int64_t charged_bytes() const { return charged_.load(std::memory_order_relaxed); }
  PagePool* pool() { return &pool_; }

  // Charges bytes; returns false, and charges nothing, if the limit would be passed.
  bool Charge(int64_t bytes) {
    if (charged_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= max_bytes_) return true;
    Release(bytes);
    return false;
  }

  bool HasRoom(int64_t bytes) const { return charged_bytes() + bytes <= max_bytes_; }

  // Charges bytes of counters, which lie outside of the pool, that were found to have room a moment
  // ago, or of a table's first pages; releases less than 0.
  void TakeForCounters(int64_t bytes) {
    counter_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    charged_.fetch_add(bytes, std::memory_order_relaxed);
    pool_.AddElsewhere(bytes);
  }
  // Counters give no memory back. Without a part of their own, those of one table might fill the
  // limit before another table has rows.
  bool HasRoomForCounters(int64_t bytes) const {
    const int64_t all = counter_bytes_.load(std::memory_order_relaxed) + bytes;
    return bytes <= 0 || (all <= max_bytes_ / kCounterParts && HasRoom(bytes));
  }

  void Release(int64_t bytes) { charged_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Adds a store, before it takes memory. `pool_share` is the share of rows and index in what is
  // charged for one of its rows; by the least of them the pool knows when to touch no page ahead.
  // `bytes` is what the store takes outside of the pool.
  void AddStore(double pool_share, int64_t bytes) {
    const MutexLock lock(&mutex_);
    ++num_stores_;
    pool_share_ = std::min(pool_share_, pool_share);
    pool_.SetMostBytes(static_cast<size_t>(pool_share_ * static_cast<double>(max_bytes_)));
    pool_.AddElsewhere(bytes);
  }
  void RemoveStore(int64_t bytes) {
    const MutexLock lock(&mutex_);
    --num_stores_;
    pool_.AddElsewhere(-bytes);
  }
  int num_stores() const {
    const MutexLock lock(&mutex_);
    return num_stores_;
  }

 private:
  const int64_t max_bytes_;
  std::atomic<int64_t> charged_{0};
  std::atomic<int64_t> counter_bytes_{0};  // of them, those of counters
  mutable Mutex mutex_;
  int num_stores_ GUARDED_BY(mutex_) = 0;
  double pool_share_ GUARDED_BY(mutex_) = 1;
  PagePool pool_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_SERVER_MEMORY_H_
