// What the stores of a server whose coldest rows are on disk share: the limit of their memory, and
// the threads that read.
#ifndef EMBEDPS_KERNELS_STORE_TIER_MEMORY_H_
#define EMBEDPS_KERNELS_STORE_TIER_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/page_pool.h"
#include "embedps/kernels/store/read_pool.h"

namespace embedps {

struct TierConfig {
  int64_t max_memory_bytes = 0;
  std::string directory;             // of the spill files, on a local disk
  int64_t segment_bytes = 16 << 20;  // of a spill file
  int64_t buffer_bytes = 256 << 10;  // of what is written at once
  int num_readers = 8;
  // With so many rows on disk, a base, a delta or a copy has them in the order in which they lie
  // there, not in that of the store: one by one, a million random reads take 10 s and more.
  int64_t many_rows = 1 << 20;
  uint32_t chunk_slots = 0;  // most slots of a chunk of floats, for tests; 0: as many as fit
};

// Counts the bytes of heads, indexes and lists, which the pool has, and of the floats in memory.
// The former grow with all rows. What they need more, the latter give back. Chunks of floats move
// from any stripe of any store to the stripes whose rows come back too soon.
class TierMemory {
 public:
  // A store, which has chunks of floats.
  class Holder {
   public:
    virtual ~Holder() = default;
    virtual int64_t ChunkBytes() const = 0;  // of all its chunks, freed ones included
    // Frees a chunk of the stripe that has the `random`th one. The caller holds the lock of the
    // stripe `locked` of this store, if it is one; another's is not waited for.
    enum class Freed { kChunk, kNothing, kNothingAsDiskIsFull };
    virtual Freed FreeChunk(uint64_t random, int locked) = 0;
  };

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
  bool IsOver() const { return IsFull(0); }
  // Whether so many bytes more would pass the limit.
  bool IsFull(int64_t bytes) const { return used_bytes() + bytes > config_.max_memory_bytes; }

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
  void Add(Holder* store) {
    const MutexLock lock(&mutex_);
    stores_.push_back(store);
  }
  // Waits until nobody asks the store.
  void Remove(Holder* store) {
    const MutexLock lock(&mutex_);
    stores_.erase(std::find(stores_.begin(), stores_.end(), store));
  }
  int num_stores() const {
    const MutexLock lock(&mutex_);
    return static_cast<int>(stores_.size());
  }

  // Frees a chunk of a stripe of any store, at random by the bytes that they have. The caller holds
  // the lock of the stripe `locked` of a store. Returns false if none was found, the disk is full,
  // or another thread looks for one.
  bool FreeSome(const Holder* store, int locked) {
    if (!mutex_.TryLock()) return false;
    const MutexLock lock(&mutex_, std::adopt_lock);
    int64_t all = 0;
    for (const Holder* each : stores_) all += each->ChunkBytes();
    for (int i = 0; i < kTries && all > 0; ++i) {
      const uint64_t random = Mix64(++tried_);
      int64_t at = static_cast<int64_t>(random % static_cast<uint64_t>(all));
      for (Holder* const each : stores_) {
        at -= each->ChunkBytes();
        if (at >= 0) continue;
        const auto freed = each->FreeChunk(Mix64(random), each == store ? locked : -1);
        if (freed != Holder::Freed::kNothing) return freed == Holder::Freed::kChunk;
        break;
      }
    }
    return false;
  }

  // The steps since the last update of the rows that leave their stripes' main queues, about; more
  // than any before one left.
  int64_t main_age() const { return main_age_.load(std::memory_order_relaxed); }
  void NoteMainAge(int64_t age) {
    const int64_t old = main_age();  // a note that is lost to another thread's does no harm
    const int64_t share = (age - old) / kAges, one = (age > old) - (age < old);
    main_age_.store(old == INT64_MAX ? age : old + (share != 0 ? share : one),
                    std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kAheadBytes = 4 << 20;
  static constexpr int kTries = 32;
  static constexpr int64_t kAges = 64;  // that are averaged, about

  const TierConfig config_;
  std::atomic<int64_t> taken_bytes_{0}, least_bytes_{0}, main_age_{INT64_MAX};
  mutable Mutex mutex_;
  std::vector<Holder*> stores_ GUARDED_BY(mutex_);
  uint64_t tried_ GUARDED_BY(mutex_) = 0;
  PagePool pool_;
  ReadPool readers_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_TIER_MEMORY_H_
