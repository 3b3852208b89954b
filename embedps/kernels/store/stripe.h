// A stripe of a table: an index from id to row, and the rows in chunks.
#ifndef EMBEDPS_KERNELS_STORE_STRIPE_H_
#define EMBEDPS_KERNELS_STORE_STRIPE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/place_hash.h"
#include "embedps/kernels/store/block_list.h"
#include "embedps/kernels/store/page_pool.h"
#include "embedps/kernels/store/row_numbers.h"

namespace embedps {

inline constexpr int kStripeBits = 12;  // bits of a row's hash that decide its stripe
inline constexpr int kStripes = 64;     // per table
inline constexpr int kChunkBits = 10;
inline constexpr uint32_t kChunkRows = 1u << kChunkBits;
// Of a compact store: half a chunk per stripe stays empty, and 64 stripes of 26 tables are many.
inline constexpr int kCompactChunkBits = 6;
inline constexpr int kFirstChunkBits = 4;
// The first chunk begins with as many rows.
inline constexpr uint32_t kFirstChunkRows = 1u << kFirstChunkBits;
inline constexpr int kSegmentBits = 12;
inline constexpr uint32_t kSegmentEntries = 1u << kSegmentBits;
inline constexpr uint32_t kMaxStripeRows = (1u << 24) - 2;
// Directory entries per segment, beyond which no segment is split. The ids' hashes are as random as
// the process's secret: with random ids there are not 4.
inline constexpr size_t kMaxDirectoryShare = 16;
inline constexpr uint32_t kNone = 0xFFFFFFFF;  // not a row
inline constexpr uint32_t kMaxFrequency = (1u << 29) - 1;

// Precedes a row's floats (row_layout.h). It is packed: a row of dim 16 with one float of optimizer
// slots takes 84 bytes as float32, and 52 with an embedding of bfloat16.
struct __attribute__((packed, aligned(4))) RowHeader {
  int64_t id;
  uint32_t last_step;
  uint32_t frequency : 29;  // number of updates; stops at kMaxFrequency
  uint32_t live : 1;
  uint32_t saved : 1;   // a cut or a copy may have given the row, so its removal must be in a delta
  uint32_t listed : 1;  // in the open list, or in the list of a cut that has not copied the row yet
};
inline constexpr size_t kHeaderBytes = 16;

// Returns the stripe of a row, by RowHash: rows in memory are in files in the order of stripes, and
// rows of one stripe displace each other at a limit, in each run in the same way. So whoever
// chooses ids can put them all into one stripe. It is as fast and as small as if they were spread,
// except that there is one lock for them, and that it takes kMaxStripeRows rows. Stripe sizes grow
// evenly from the first to the last, which has twice as many rows. If all stripes had the same
// size, all segments of a table's indexes would be full and split at the same time, and a lookup
// that inserts would wait for a split in each stripe.
inline int StripeOf(uint64_t row_hash) {
  constexpr uint64_t kOne = uint64_t{1} << kStripeBits;
  const uint64_t x = row_hash & (kOne - 1);
  return static_cast<int>(kStripes * x * (4 * kOne - x) / (3 * kOne * kOne));
}

static_assert(sizeof(RowHeader) == kHeaderBytes);

// What has the floats of a stripe's rows if they are not behind the headers (row_tier.h). Called
// under the stripe's lock.
class StripeTier {
 public:
  virtual ~StripeTier() = default;
  // Lets a row go that is about to be removed, or all of them.
  virtual void Drop(uint32_t number) = 0;
  virtual void Clear() = 0;
};

// The rows of one stripe of one table. `mutex` guards everything except the constants. All that
// grows lies in the pool, which outlives the stripe.
//
// The index consists of segments of at most 4096 entries, which a directory finds (Fagin et al.,
// Extendible Hashing, 1979). A full segment is split alone, so an insert rehashes the rows of at
// most one segment, however many rows there are. The place of a row in it is by HashOf, which is
// the `hash` of all functions here.
class Stripe {
 public:
  Stripe(size_t row_bytes, PagePool* pool, uint64_t table_salt, int chunk_bits = kChunkBits)
      : open(pool),
        open_removed(pool),
        pending(pool),
        pending_removed(pool),
        displaced_by_records(pool),
        table_salt_(table_salt),
        row_bytes_(static_cast<uint32_t>(row_bytes)),
        chunk_bits_(chunk_bits),
        pool_(pool),
        directory_(PoolAllocator<Segment*>(pool)),
        segments_(PoolAllocator<Segment*>(pool)),
        chunks_(PoolAllocator<char*>(pool)) {}

  mutable Mutex mutex;

  // Returns the hash of an id of the table.
  uint64_t HashOf(int64_t id) const { return PlaceHash(RowHash(table_salt_, id)); }

  // Four functions prefetch an id's row: the directory entry, the index entry, the chunk's address,
  // the row. Each needs the result of the one before, so the caller calls it some ids later. All
  // four are outside the caches for a large table. They are inlined by force: GCC considers a
  // function that only prefetches to have no effect, and drops its calls.
  [[gnu::always_inline]] void PrefetchSegment(uint64_t hash) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!directory_.empty()) {
      __builtin_prefetch(&directory_[DirectoryBits(hash) & (directory_.size() - 1)]);
    }
  }

  [[gnu::always_inline]] void PrefetchEntry(uint64_t hash) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!directory_.empty()) __builtin_prefetch(&SegmentOf(hash)->entries()[Home(hash)]);
  }

  // Also returns the number of the row that is probably the id's, or kNone.
  uint32_t PrefetchChunk(uint64_t hash) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (directory_.empty()) return kNone;
    const uint32_t* entries = SegmentOf(hash)->entries();
    uint32_t key = KeyOf(hash);
    for (uint32_t at = Home(hash); !EndsAt(entries[at], key); at = (at + 1) & mask_) {
      const uint32_t searched = std::exchange(key, Farther(key));
      if (!HasKey(entries[at], searched)) continue;
      const uint32_t number = RowOf(entries[at]);
      __builtin_prefetch(&chunks_[number >> chunk_bits_]);
      return number;
    }
    return kNone;
  }

  template <bool kWrites = true>
  [[gnu::always_inline]] void PrefetchRow(uint32_t probably) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (probably == kNone) return;
    const char* row = reinterpret_cast<const char*>(Row(probably));
    for (size_t byte = 0; byte < row_bytes(); byte += 64) __builtin_prefetch(row + byte, kWrites);
    __builtin_prefetch(row + row_bytes() - 1, kWrites);  // it may end in one more cache line
  }

  // Find, with the result of PrefetchChunk.
  uint32_t Find(uint64_t hash, int64_t id, uint32_t probably) const
      EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (probably != kNone && Row(probably)->id == id && Row(probably)->live) return probably;
    return Find(hash, id);
  }

  // Returns the number of the row of `id`, or kNone.
  uint32_t Find(uint64_t hash, int64_t id) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (directory_.empty()) return kNone;
    const Segment* segment = SegmentOf(hash);
    uint32_t key = KeyOf(hash);
    for (uint32_t at = Home(hash);; at = (at + 1) & mask_, key = Farther(key)) {
      const uint32_t entry = segment->entries()[at];
      if (EndsAt(entry, key)) return kNone;
      if (HasKey(entry, key) && Row(RowOf(entry))->id == id) return RowOf(entry);
    }
  }

  // Adds a row for an absent id, without setting its floats. Returns its number, or kNone if the
  // stripe is full, or too many ids share the bits of their hashes.
  uint32_t Insert(uint64_t hash, int64_t id) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (directory_.empty() || (SegmentOf(hash)->used + 1) * 5 > (mask_ + 1) * 4) {
      if (!Grow(hash)) return kNone;
    }
    uint32_t number;
    if (free_ != kNone) {
      number = free_;
      free_ = NextFree(number);
    } else {
      if (used_ >= kMaxStripeRows) return kNone;
      if (used_ == room_) AddRoom();
      number = used_++;
    }
    RowHeader* row = Row(number);
    row->id = id;
    row->last_step = 0;
    row->frequency = 0;
    row->live = 1;
    row->saved = 0;
    row->listed = 0;
    ++live_;
    Place(SegmentOf(hash), hash, number);
    return number;
  }

  // Makes an empty stripe's index large enough for `rows` rows. Otherwise inserts would double and
  // split it again and again, which is a sixth of the time of a load.
  void Reserve(int64_t rows) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (!directory_.empty()) return;
    uint32_t size = 8, depth = 0;
    while (size < kSegmentEntries && rows * 5 > size * int64_t{4}) size *= 2;
    // Segments fill to three quarters on average, because some get more rows than others.
    while (rows * 4 > (int64_t{kSegmentEntries} << depth) * 3) ++depth;
    mask_ = size - 1;
    for (uint32_t i = 0; i < 1u << depth; ++i) segments_.push_back(NewSegment(size, depth));
    directory_ = segments_;
  }

  // Removes the row of `id`. Returns whether it was there. The caller records the removal if the
  // next cut must contain it.
  bool Remove(uint64_t hash, int64_t id) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const uint32_t number = Find(hash, id);
    if (number == kNone) return false;
    RemoveRow(hash, number);
    return true;
  }

  // The same for a live row of that hash.
  void RemoveRow(uint64_t hash, uint32_t number) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Segment* segment = SegmentOf(hash);
    uint32_t at = Home(hash);
    while (RowOf(segment->entries()[at]) != number) at = (at + 1) & mask_;
    if (tier != nullptr) tier->Drop(number);
    RowHeader* row = Row(number);
    row->live = 0;
    // If the row comes back, the next cut writes it after its removal, so it must be listed again.
    row->listed = 0;
    row->id = free_;  // the free rows are a list
    free_ = number;
    --live_;
    --segment->used;
    CloseGap(segment, at);
  }

  // Lists a live row for the next cut.
  void Touch(uint32_t number) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    RowHeader* row = Row(number);
    if (row->listed) return;
    row->listed = 1;
    open.Insert(number);
  }

  RowHeader* Row(uint32_t number) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return reinterpret_cast<RowHeader*>(chunks_[number >> chunk_bits_] +
                                        (number & (chunk_rows() - 1)) * row_bytes());
  }

  size_t row_bytes() const { return row_bytes_; }
  uint32_t used() const EXCLUSIVE_LOCKS_REQUIRED(mutex) { return used_; }  // row numbers ever used
  int64_t live() const EXCLUSIVE_LOCKS_REQUIRED(mutex) { return live_; }
  // Rows that there is memory for.
  uint32_t room() const EXCLUSIVE_LOCKS_REQUIRED(mutex) { return room_; }

  // Whether the next insert needs memory for more rows, and for how many there will be memory then.
  bool NeedsRoom() const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return free_ == kNone && used_ == room_ && used_ < kMaxStripeRows;
  }
  uint32_t NextRoom() const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return room_ >= chunk_rows() ? room_ + chunk_rows() : std::max(kFirstChunkRows, 2 * room_);
  }

  void Clear() EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (tier != nullptr) tier->Clear();
    for (Segment* segment : segments_) FreeSegment(segment, mask_ + 1);
    for (char* chunk : chunks_) pool_->Free(chunk, std::min(room_, chunk_rows()) * row_bytes());
    for (auto* pointers : {&directory_, &segments_}) {
      pointers->clear();
      pointers->shrink_to_fit();
    }
    chunks_.clear();
    chunks_.shrink_to_fit();
    free_ = kNone;
    mask_ = used_ = room_ = 0;
    live_ = 0;
    open.Clear();
    open_removed.Take();
    pending.Clear();
    pending_removed.Take();
    displaced_by_records.Take();
    hand = 0;
    displacements = {};
  }

  void ForgetTouches() EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    constexpr size_t kAhead = 16;
    for (auto* numbers : {&open, &pending}) {
      const std::vector<uint32_t> rows = numbers->Take();
      for (size_t i = 0; i < rows.size(); ++i) {
        if (i + kAhead < rows.size()) __builtin_prefetch(Row(rows[i + kAhead]), 1);
        Row(rows[i])->listed = 0;
        Row(rows[i])->saved = 1;  // whoever forgets the touches knows the rows
      }
    }
    open_removed.Take();
    pending_removed.Take();
  }

  int64_t MemoryBytes() const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return static_cast<int64_t>(
        sizeof(*this) + room_ * row_bytes() + segments_.size() * SegmentBytes(mask_ + 1) +
        (chunks_.capacity() + segments_.capacity() + directory_.capacity()) * sizeof(void*) +
        open.MemoryBytes() + pending.MemoryBytes() + open_removed.MemoryBytes() +
        pending_removed.MemoryBytes() + displaced_by_records.MemoryBytes());
  }

  // Null if the floats are behind the headers. Set before the first row.
  StripeTier* tier = nullptr;

  // Rows touched, and ids of saved rows removed, since the last cut.
  RowNumbers open GUARDED_BY(mutex);
  BlockList<int64_t> open_removed GUARDED_BY(mutex);
  // Those of the last cut, until it is known to be committed.
  RowNumbers pending GUARDED_BY(mutex);
  BlockList<int64_t> pending_removed GUARDED_BY(mutex);
  // Ids without a place when records were loaded.
  BlockList<int64_t> displaced_by_records GUARDED_BY(mutex);
  // Where the next choice of a row to displace begins.
  uint32_t hand GUARDED_BY(mutex) = 0;

  // What a displacement finds out for the next ones (eviction.h).
  struct Displacements {
    uint32_t next = kNone;                 // the row that the next one chooses, if nothing changes
    uint32_t second = kNone;               // and the one after it
    uint32_t changed[2] = {kNone, kNone};  // the rows that the last two displaced
    int in_visit = 0;   // since when only displacements and inserts in their places changed rows
    int uncounted = 0;  // that the table's counts do not have yet
  };
  Displacements displacements GUARDED_BY(mutex);

 private:
  // Entries of ids whose hashes share `depth` bits, after those of the position.
  struct Segment {
    uint32_t used;
    uint32_t depth;
    // The entries follow the struct. The stripe's mask tells their number.
    uint32_t* entries() { return reinterpret_cast<uint32_t*>(this + 1); }
    const uint32_t* entries() const { return reinterpret_cast<const uint32_t*>(this + 1); }
  };
  static size_t SegmentBytes(uint32_t size) { return sizeof(Segment) + size * sizeof(uint32_t); }

  // Makes an empty segment.
  Segment* NewSegment(uint32_t size, uint32_t depth) {
    const size_t bytes = SegmentBytes(size);
    auto* segment = reinterpret_cast<Segment*>(pool_->Allocate(bytes));
    std::memset(segment, 0, bytes);
    segment->depth = depth;
    return segment;
  }
  void FreeSegment(Segment* segment, uint32_t size) {
    pool_->Free(reinterpret_cast<char*>(segment), SegmentBytes(size));
  }

  // Adds a chunk. Chunks never move, except the first: it doubles until it has the full size, as
  // most of a full chunk would stay empty in each stripe of a small table.
  void AddRoom() EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (room_ >= chunk_rows()) {
      chunks_.push_back(pool_->Allocate(chunk_rows() * row_bytes()));
      room_ += chunk_rows();
      return;
    }
    const uint32_t room = NextRoom();
    char* chunk = pool_->Allocate(room * row_bytes());
    if (room_ > 0) {
      std::memcpy(chunk, chunks_[0], used_ * row_bytes());
      pool_->Free(chunks_[0], room_ * row_bytes());
    }
    chunks_.assign(1, chunk);
    room_ = room;
  }

  // An index entry has a key in the upper 8 bits and row number + 1 in the lower 24. 0 is empty.
  // The key is the distance from the hash's home, where kFar means as far or farther, and 5 bits of
  // the hash. A probe sequence is in the order of the homes (Robin Hood hashing; Celis, 1986). So
  // the search for an absent id ends early, few entries are far, and insertions and removals move
  // entries without their rows unless they are far. A lookup reads about as few rows of other ids
  // as with 8 bits of the hash: an entry of another home has another distance.
  static constexpr int kTagBits = 5, kDistanceShift = 24 + kTagBits;
  static constexpr uint32_t kFar = 7, kOneFarther = 1u << kDistanceShift;
  static uint32_t RowOf(uint32_t entry) { return (entry & 0xFFFFFF) - 1; }
  static uint32_t Distance(uint32_t entry) { return entry >> kDistanceShift; }
  // Returns an entry at its home, without a row number.
  static uint32_t KeyOf(uint64_t hash) {
    return static_cast<uint32_t>(hash >> (64 - kTagBits)) << 24;
  }
  static uint32_t Farther(uint32_t entry) {
    return entry + (Distance(entry) < kFar ? kOneFarther : 0);
  }
  static bool HasKey(uint32_t entry, uint32_t key) { return ((entry ^ key) >> 24) == 0; }
  // Whether a search that has come to an entry ends there: an id with the key would be there.
  static bool EndsAt(uint32_t entry, uint32_t key) {
    return entry == 0 || Distance(entry) < Distance(key);
  }
  uint32_t DistanceOfRow(uint32_t entry, uint32_t at) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return (at - Home(HashOf(Row(RowOf(entry))->id))) & mask_;
  }
  uint32_t Home(uint64_t hash) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return static_cast<uint32_t>(hash) & mask_;
  }
  static size_t DirectoryBits(uint64_t hash) { return hash >> kSegmentBits; }
  Segment* SegmentOf(uint64_t hash) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return directory_[DirectoryBits(hash) & (directory_.size() - 1)];
  }

  // A free row's id is the number of the next free row.
  uint32_t NextFree(uint32_t number) const EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return static_cast<uint32_t>(Row(number)->id);
  }

  // Adds an entry where a search for it ends, and moves those from there on by one place.
  void Place(Segment* segment, uint64_t hash, uint32_t number) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    uint32_t* entries = segment->entries();
    uint32_t at = Home(hash), key = KeyOf(hash);
    for (uint32_t distance = 0; !EndsAt(entries[at], key); ++distance, key = Farther(key)) {
      if (distance >= kFar && DistanceOfRow(entries[at], at) < distance) break;
      at = (at + 1) & mask_;
    }
    uint32_t placed = key | (number + 1);
    for (; entries[at] != 0; at = (at + 1) & mask_) {
      placed = Farther(std::exchange(entries[at], placed));
    }
    entries[at] = placed;
    ++segment->used;
  }

  // Makes room in the segment of `hash`: doubles the only segment until it has the full size, then
  // splits segments. Returns false, and changes nothing, if the directory would be too large.
  bool Grow(uint64_t hash) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (directory_.empty()) {
      mask_ = 7;
      segments_.push_back(NewSegment(mask_ + 1, 0));
      directory_.push_back(segments_.back());
      return true;
    }
    const uint32_t old_size = mask_ + 1;
    const Segment* segment = SegmentOf(hash);
    if (old_size == kSegmentEntries && size_t{1} << segment->depth == directory_.size() &&
        directory_.size() >= kMaxDirectoryShare * segments_.size()) {
      return false;
    }
    const std::vector<uint32_t> old(segment->entries(), segment->entries() + old_size);
    if (old_size < kSegmentEntries) {
      mask_ = 2 * old_size - 1;
      FreeSegment(segments_[0], old_size);
      segments_[0] = NewSegment(mask_ + 1, 0);
      directory_[0] = segments_[0];
    } else {
      Split(SegmentOf(hash), DirectoryBits(hash));
    }
    for (uint32_t i = 0; i < old_size; ++i) {
      if (i + 8 < old_size && old[i + 8] != 0) __builtin_prefetch(Row(RowOf(old[i + 8])));
      if (old[i] == 0) continue;
      const uint64_t moved = HashOf(Row(RowOf(old[i]))->id);
      Place(SegmentOf(moved), moved, RowOf(old[i]));
    }
    return true;
  }

  // Empties the segment at `bits` of the directory, and makes another one for half of its ids.
  void Split(Segment* segment, size_t bits) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const size_t step = size_t{1} << segment->depth++;
    std::fill_n(segment->entries(), mask_ + 1, 0);
    segment->used = 0;
    segments_.push_back(NewSegment(mask_ + 1, segment->depth));
    if (step == directory_.size()) {
      directory_.resize(2 * step);
      std::copy_n(directory_.begin(), step, directory_.begin() + step);
    }
    for (size_t i = (bits & (step - 1)) + step; i < directory_.size(); i += 2 * step) {
      directory_[i] = segments_.back();
    }
  }

  // Moves the later entries of the probe sequence back by one place. So there are no tombstones.
  void CloseGap(Segment* segment, uint32_t gap) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    uint32_t* entries = segment->entries();
    for (uint32_t at = (gap + 1) & mask_; Distance(entries[at]) > 0; at = (at + 1) & mask_) {
      const uint32_t entry = entries[at];
      const bool stays_far = Distance(entry) == kFar && DistanceOfRow(entry, at) > kFar;
      entries[gap] = stays_far ? entry : entry - kOneFarther;
      gap = at;
    }
    entries[gap] = 0;
  }

  uint32_t chunk_rows() const { return 1u << chunk_bits_; }

  const uint64_t table_salt_;
  const uint32_t row_bytes_;
  const int chunk_bits_;
  PagePool* const pool_;
  // 2^n entries, by the hash's bits after those of the position.
  std::vector<Segment*, PoolAllocator<Segment*>> directory_ GUARDED_BY(mutex);
  std::vector<Segment*, PoolAllocator<Segment*>> segments_ GUARDED_BY(mutex);
  std::vector<char*, PoolAllocator<char*>> chunks_ GUARDED_BY(mutex);
  uint32_t room_ GUARDED_BY(mutex) = 0;      // rows in the chunks, used or not
  uint32_t free_ GUARDED_BY(mutex) = kNone;  // the first free row
  uint32_t used_ GUARDED_BY(mutex) = 0;
  uint32_t mask_ GUARDED_BY(mutex) = 0;  // entries per segment - 1
  int64_t live_ GUARDED_BY(mutex) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_STRIPE_H_
