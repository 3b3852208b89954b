// One stripe of a table: an index from id to row, and the rows in chunks that never move.
#ifndef EMBEDPS_KERNELS_STRIPE_H_
#define EMBEDPS_KERNELS_STRIPE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "embedps/kernels/hash.h"

namespace embedps {

inline constexpr int kStripeBits = 6;
inline constexpr int kStripes = 1 << kStripeBits;  // a table
inline constexpr int kChunkBits = 10;
inline constexpr uint32_t kChunkRows = 1u << kChunkBits;
inline constexpr uint32_t kMaxStripeRows = (1u << 24) - 2;
inline constexpr uint32_t kNone = 0xFFFFFFFF;  // no row

// What stands before a row's floats. Packed, so that a row of dim 16 with one slot takes 88 bytes.
struct RowHeader {
  int64_t id;
  uint32_t last_step;
  uint32_t frequency;  // updates applied
  uint32_t listed;     // (the open cut whose list holds the row) * 2 + live
};
inline constexpr size_t kHeaderBytes = 20;
inline constexpr uint32_t kLive = 1;

static_assert(offsetof(RowHeader, listed) + sizeof(uint32_t) == kHeaderBytes);

// One table's rows of one stripe. Everything but the constants is guarded by `mutex`.
class Stripe {
 public:
  explicit Stripe(size_t row_bytes) : row_bytes_(row_bytes) {}

  std::mutex mutex;

  static uint8_t Tag(uint64_t hash) {
    return static_cast<uint8_t>((hash * 0x9E3779B97F4A7C15ull) >> 56);
  }

  void Prefetch(uint64_t hash) const {
    if (!index_.empty()) __builtin_prefetch(&index_[Home(hash)]);
  }

  // The number of the row of `id`, or kNone.
  uint32_t Find(uint64_t hash, int64_t id) const {
    if (index_.empty()) return kNone;
    const uint32_t tag = Tag(hash);
    for (uint32_t at = Home(hash);; at = (at + 1) & mask_) {
      const uint32_t entry = index_[at];
      if (entry == 0) return kNone;
      if (entry >> 24 == tag && Row(RowOf(entry))->id == id) return RowOf(entry);
    }
  }

  // The number of a new row for an id that is not there, its floats not set, or kNone when the
  // stripe is full.
  uint32_t Insert(uint64_t hash, int64_t id, uint64_t salt) {
    uint32_t number;
    if (!free_.empty()) {
      number = free_.back();
      free_.pop_back();
    } else {
      if (used_ >= kMaxStripeRows) return kNone;
      number = used_++;
      if (number >> kChunkBits == chunks_.size()) {
        chunks_.emplace_back(new char[kChunkRows * row_bytes_]);  // untouched pages cost nothing
      }
      Row(number)->listed = 0;
    }
    RowHeader* row = Row(number);
    row->id = id;
    row->last_step = 0;
    row->frequency = 0;
    row->listed |= kLive;
    ++live_;
    if (static_cast<uint64_t>(live_) * 5 > index_.size() * uint64_t{4}) Grow(salt);
    Place(hash, number);
    return number;
  }

  // Frees the row of `id`. Returns whether it was there. The caller records the removal where the
  // next cut is to give it.
  bool Remove(uint64_t hash, int64_t id, uint64_t salt) {
    if (index_.empty()) return false;
    const uint32_t tag = Tag(hash);
    for (uint32_t at = Home(hash);; at = (at + 1) & mask_) {
      const uint32_t entry = index_[at];
      if (entry == 0) return false;
      if (entry >> 24 != tag || Row(RowOf(entry))->id != id) continue;
      Row(RowOf(entry))->listed &= ~kLive;
      free_.push_back(RowOf(entry));
      --live_;
      CloseGap(at, salt);
      return true;
    }
  }

  // Lists a live row for the next cut, once.
  void Touch(uint32_t number) {
    RowHeader* row = Row(number);
    if (row->listed >> 1 == open_cut) return;
    row->listed = open_cut << 1 | kLive;
    open.push_back(number);
  }

  RowHeader* Row(uint32_t number) const {
    return reinterpret_cast<RowHeader*>(chunks_[number >> kChunkBits].get() +
                                        (number & (kChunkRows - 1)) * row_bytes_);
  }
  float* Embedding(uint32_t number) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(Row(number)) + kHeaderBytes);
  }

  uint32_t used() const { return used_; }  // row numbers ever given out
  int64_t live() const { return live_; }

  void Clear() {
    index_ = {};
    chunks_.clear();
    free_ = {};
    mask_ = used_ = 0;
    live_ = 0;
    ForgetTouches();
  }

  void ForgetTouches() {
    open = {};
    open_removed = {};
    pending = {};
    pending_removed = {};
  }

  int64_t MemoryBytes() const {
    return static_cast<int64_t>(
        sizeof(*this) + chunks_.size() * kChunkRows * row_bytes_ +
        (index_.capacity() + free_.capacity() + open.capacity() + pending.capacity()) *
            sizeof(uint32_t) +
        (open_removed.capacity() + pending_removed.capacity()) * sizeof(int64_t));
  }

  uint32_t open_cut = 1;              // what is touched now belongs to this cut
  std::vector<uint32_t> open;         // rows touched since the last cut, each once
  std::vector<int64_t> open_removed;  // ids removed since the last cut
  std::vector<uint32_t> pending;      // cut, but not known to be committed
  std::vector<int64_t> pending_removed;

 private:
  // An index entry: tag in the upper 8 bits, row number + 1 in the lower 24; 0 is empty.
  static uint32_t RowOf(uint32_t entry) { return (entry & 0xFFFFFF) - 1; }
  uint32_t Home(uint64_t hash) const { return static_cast<uint32_t>(hash >> kStripeBits) & mask_; }

  void Place(uint64_t hash, uint32_t number) {
    uint32_t at = Home(hash);
    while (index_[at] != 0) at = (at + 1) & mask_;
    index_[at] = uint32_t{Tag(hash)} << 24 | (number + 1);
  }

  void Grow(uint64_t salt) {
    const std::vector<uint32_t> old = std::move(index_);
    index_.assign(std::max<size_t>(8, old.size() * 2), 0);
    mask_ = static_cast<uint32_t>(index_.size() - 1);
    for (const uint32_t entry : old) {
      if (entry != 0) Place(RowHash(salt, Row(RowOf(entry))->id), RowOf(entry));
    }
  }

  // Moves later entries of the probe run back over the gap, so that no run is broken and none needs
  // a tombstone.
  void CloseGap(uint32_t gap, uint64_t salt) {
    for (uint32_t at = (gap + 1) & mask_; index_[at] != 0; at = (at + 1) & mask_) {
      const uint32_t home = Home(RowHash(salt, Row(RowOf(index_[at]))->id));
      if (((at - home) & mask_) >= ((at - gap) & mask_)) {
        index_[gap] = index_[at];
        gap = at;
      }
    }
    index_[gap] = 0;
  }

  const size_t row_bytes_;
  std::vector<uint32_t> index_;
  uint32_t mask_ = 0;
  std::vector<std::unique_ptr<char[]>> chunks_;
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;
  int64_t live_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STRIPE_H_
