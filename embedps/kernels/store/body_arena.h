// Memory for the floats of rows in a store whose coldest rows are on disk.
#ifndef EMBEDPS_KERNELS_STORE_BODY_ARENA_H_
#define EMBEDPS_KERNELS_STORE_BODY_ARENA_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

// Slots for the floats of rows, in chunks of a few pages. All lie in one mapping, so that a slot's
// number gives its address. The pages of chunks that are freed go back to the system, except a few.
class BodyArena {
 public:
  // Which queue of its stripe has the slot's row (hot_rows.h).
  enum class Queue : uint8_t { kFree, kSmall, kMain };
  // What is to come of a row: the lookup for which it was read ahead, or the update that follows a
  // lookup in training.
  enum class Awaited : uint8_t { kNothing, kLookup, kUpdate };

  // Precedes the floats of a slot. The lock of the stripe that has the chunk guards it.
  struct Slot {
    uint32_t row : 24;  // below kMaxStripeRows
    uint8_t uses : 2;   // since the policy last looked at it
    Queue queue : 2;
    bool ringed : 1;  // the small queue has an entry for it, which may be out of date
    Awaited awaited : 2;
    // The place (row_place.h) to which the row goes back while its floats are those of the record
    // there; 0 if there is none.
    uint32_t record;
    char* floats() { return reinterpret_cast<char*>(this + 1); }
  };
  static_assert(sizeof(Slot) == 8);

  static constexpr uint32_t kLeastChunkSlots = 16;

  // `body_bytes` are those of a row's floats. There are at most `max_bytes` of chunks, and kScratch
  // more. A chunk has at most `chunk_slots` slots; 0: as many as fit.
  BodyArena(size_t body_bytes, int64_t max_bytes, uint32_t chunk_slots = 0);
  ~BodyArena();
  BodyArena(const BodyArena&) = delete;
  BodyArena& operator=(const BodyArena&) = delete;

  size_t body_bytes() const { return body_bytes_; }
  uint32_t chunk_slots() const { return chunk_slots_; }
  int64_t chunk_bytes() const { return static_cast<int64_t>(chunk_bytes_); }
  static int64_t ChunkBytes(size_t body_bytes);

  // Returns the number of the first slot of a chunk for `holder`, all of whose slots are free;
  // kNoSlot if there is none.
  static constexpr uint32_t kNoSlot = (1u << 30) - 1;
  uint32_t NewChunk(int holder);
  void FreeChunk(uint32_t first);

  // Returns who has a chunk, one of those ever made; kNobody if it is free.
  static constexpr int kNobody = -1;
  uint32_t num_chunks() const { return num_chunks_.load(std::memory_order_relaxed); }
  int HolderOfAny(uint64_t random) const {
    const uint32_t chunks = num_chunks();
    return chunks == 0 ? kNobody : holders_.get()[random % chunks].load(std::memory_order_relaxed);
  }

  Slot* At(uint32_t slot) const {
    return reinterpret_cast<Slot*>(base_ + (slot >> slot_bits_) * chunk_bytes_ +
                                   (slot & ((1u << slot_bits_) - 1)) * slot_bytes_);
  }

  [[gnu::always_inline]] void Prefetch(uint32_t slot) const {
    const char* const at = reinterpret_cast<const char*>(At(slot));
    for (size_t byte = 0; byte < slot_bytes_; byte += 64) __builtin_prefetch(at + byte, 1);
    __builtin_prefetch(at + slot_bytes_ - 1, 1);
  }

 private:
  static constexpr int64_t kScratch = 64 << 20;
  static constexpr size_t kKeptBytes = 1 << 20;  // of freed chunks that keep their pages

  struct Free {
    void operator()(void* bytes) const { std::free(bytes); }
  };

  const size_t body_bytes_;
  const size_t slot_bytes_;
  const size_t chunk_bytes_;
  const uint32_t chunk_slots_;
  const int slot_bits_;
  const uint32_t max_chunks_;
  char* base_;
  std::atomic<bool> gives_back_{false};
  std::atomic<uint32_t> num_chunks_{0};                  // ever made
  std::unique_ptr<std::atomic<int32_t>, Free> holders_;  // of each chunk
  Mutex mutex_;
  std::vector<uint32_t> freed_ GUARDED_BY(mutex_);
  std::vector<uint32_t> kept_ GUARDED_BY(mutex_);  // freed, with their pages
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_BODY_ARENA_H_
