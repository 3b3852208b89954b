// Which rows of a stripe are in memory, in a store whose coldest rows are on disk.
#ifndef EMBEDPS_KERNELS_STORE_HOT_ROWS_H_
#define EMBEDPS_KERNELS_STORE_HOT_ROWS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "embedps/kernels/store/body_arena.h"
#include "embedps/kernels/store/tier_memory.h"

namespace embedps {

// The slots of one stripe, and S3-FIFO (Yang et al., 2023) to choose which row leaves them. A row
// begins in a small queue, a tenth of the slots. At its end it goes to disk unless a lookup used it
// in between. So ids that come once never push out rows in the main queue. A row comes back from
// disk too soon if it was last updated no longer ago than the rows that leave the main queues now,
// those of all stripes of the server: heads know the step, so there is no queue of ghosts. It
// begins in the main queue. The main queue is a clock that goes round the slots, and a row stays as
// many rounds as lookups used it, at most kMostUses. A row whose lookup or update is to come
// stays one round more. Few rows are read ahead while such rows are many, so that they do not push
// out each other.
//
// A stripe whose rows come back too soon takes a chunk from another, which is chosen at random by
// their sizes. So in the end each stripe has as many slots as rows of it come back too soon: more
// memory would help all of them equally (as Cliffhanger divides a cache: Cidon et al., 2016).
//
// The lock of the stripe guards all of it.
class HotRows {
 public:
  using Awaited = BodyArena::Awaited;
  static constexpr uint8_t kMostUses = 3;
  static constexpr int64_t kSmallParts = 10;   // the small queue is one of these
  static constexpr int64_t kAwaitedParts = 8;  // no row is read ahead if one of these is awaited
  // Of a slot in this object's lists.
  static constexpr int64_t kListBytes = 2 * sizeof(uint32_t);

  // Both outlive it.
  HotRows(BodyArena* arena, TierMemory* memory, int holder)
      : arena_(arena), memory_(memory), holder_(holder) {}
  ~HotRows() { Clear(); }
  HotRows(const HotRows&) = delete;
  HotRows& operator=(const HotRows&) = delete;

  // Takes a slot that has no row: one that was freed, or of a new chunk if there is memory. The
  // first chunk does not ask. Returns kNoSlot if there is none.
  uint32_t TakeFree();

  // Takes one that was freed and is not in [first, end); kNoSlot if there is none.
  uint32_t TakeOther(uint32_t first, uint32_t end);

  // Chooses the row that leaves next; returns its slot, or kNoSlot without rows. The caller frees
  // the slot, or keeps it.
  uint32_t Victim();
  void Keep(uint32_t slot);

  // Gives a slot that was taken a row.
  void Add(uint32_t slot, uint32_t row, bool is_main);
  // Takes its row, if it has one, and makes it free.
  void Free(uint32_t slot);

  // Notes that a row came back too soon; returns whether the stripe needs a chunk for such rows.
  bool NeedsChunk();

  // Notes that a lookup used a slot's row, which an update follows or not.
  void Use(uint32_t slot, bool is_training) {
    BodyArena::Slot* const at = arena_->At(slot);
    if (at->awaited != Awaited::kLookup && at->uses < kMostUses) ++at->uses;
    Await(slot, is_training ? Awaited::kUpdate : Awaited::kNothing);
  }
  // Notes what comes of a slot's row.
  void Await(uint32_t slot, Awaited what) {
    BodyArena::Slot* const at = arena_->At(slot);
    num_awaited_ += static_cast<int64_t>(what != Awaited::kNothing) -
                    static_cast<int64_t>(at->awaited != Awaited::kNothing);
    at->awaited = what;
  }
  // Whether there is room for one more row ahead of its lookup, beside `more` that are to come.
  bool TakesAhead(int64_t more) const { return (num_awaited_ + more) * kAwaitedParts < num_rows(); }

  // Notes to which place on disk a slot's row goes back as long as it does not change; 0 is none.
  void SetRecord(uint32_t slot, uint32_t record) {
    BodyArena::Slot* const at = arena_->At(slot);
    num_clean_ += static_cast<int64_t>(record != 0) - static_cast<int64_t>(at->record != 0);
    at->record = record;
  }
  // Returns the slot of a row with such a place, not by the policy; kNoSlot if there is none.
  uint32_t AnyClean() const;

  // Moves a row to a slot that was taken.
  void Move(uint32_t from, uint32_t to);

  // The first slot of the last chunk; kNoSlot if only the first chunk is left.
  uint32_t LastChunk() const { return chunks_.size() > 1 ? chunks_.back() : BodyArena::kNoSlot; }
  // Frees the last chunk, which has no rows.
  void DropLastChunk();

  // Drops all.
  void Clear();

  int64_t num_rows() const { return num_small_ + num_main_; }
  int64_t num_small() const { return num_small_; }
  int64_t MemoryBytes() const { return static_cast<int64_t>(chunks_.size()) * ChargedBytes(); }
  // What a chunk counts.
  int64_t ChargedBytes() const {
    return arena_->chunk_bytes() + arena_->chunk_slots() * kListBytes;
  }

  int64_t spilled = 0;  // rows of the stripe on disk

 private:
  // Whether something is to come of a slot's row; it waits no longer.
  bool EndWait(uint32_t slot) {
    const bool waits = arena_->At(slot)->awaited != Awaited::kNothing;
    Await(slot, Awaited::kNothing);
    return waits;
  }

  BodyArena* const arena_;
  TierMemory* const memory_;
  const int holder_;              // of the arena's chunks
  std::vector<uint32_t> chunks_;  // the first slot of each
  std::vector<uint32_t> free_;    // slots
  // Slots in the order in which they got rows; each at most once. Some have no row, or one of the
  // main queue, by now.
  std::deque<uint32_t> small_;
  int64_t num_small_ = 0, num_main_ = 0, num_awaited_ = 0;
  int64_t num_clean_ = 0;  // rows with a record on disk
  uint32_t missed_ = 0;    // rows that came back too soon, since it took a chunk for them
  size_t hand_chunk_ = 0;
  uint32_t hand_slot_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_HOT_ROWS_H_
