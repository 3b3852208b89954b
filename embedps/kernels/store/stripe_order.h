// Orders a step's ids by stripe, so each stripe is locked once, and finds their rows with
// prefetches.
#ifndef EMBEDPS_KERNELS_STORE_STRIPE_ORDER_H_
#define EMBEDPS_KERNELS_STORE_STRIPE_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/parallel.h"
#include "embedps/kernels/store/body_arena.h"
#include "embedps/kernels/store/row_place.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

// A step's ids on one shard, ordered by table, each once per table. Those of table t are
// ids[splits[t], splits[t+1]).
struct IdsByTable {
  const int64_t* ids = nullptr;
  int64_t num_ids = 0;
  const int32_t* splits = nullptr;  // num_tables + 1, from 0 to num_ids
};

// The ids of a batch, grouped by stripe.
class StripeOrder {
 public:
  static constexpr int kBlock = 32;

  struct Entry {
    uint64_t hash;      // Stripe::HashOf
    uint64_t row_hash;  // RowHash
    int32_t at;         // index in the batch
    int32_t bin;        // table * kStripes + stripe
  };

  // `table_salts` has the TableSalt of each table of the batch.
  StripeOrder(const IdsByTable& batch, const std::vector<uint64_t>& table_salts,
              const ParallelFor& parallel);
  // Some of its entries again.
  explicit StripeOrder(std::vector<Entry> entries);

  // Calls visit(bin, first entry, end of entries) in parallel for each stripe that has ids. `cost`
  // is roughly the cycles per entry. The entry at the end tells the bin that is visited next, or
  // it is -1.
  template <typename Visit>
  void ForEachBin(const ParallelFor& parallel, int64_t cost, const Visit& visit) const {
    const int64_t n = num_ids_;
    parallel(n, cost, [&](int64_t begin, int64_t end) {
      // A bin belongs to the range that contains its first entry.
      while (begin > 0 && begin < n && entries_[begin].bin == entries_[begin - 1].bin) ++begin;
      while (begin < end) {
        int64_t last = begin + 1;
        while (last < n && entries_[last].bin == entries_[begin].bin) ++last;
        visit(entries_[begin].bin, &entries_[begin], &entries_[begin] + (last - begin));
        begin = last;
      }
    });
  }

  // Calls visit(first entry, end of entries) in parallel for blocks of at most kBlock entries, of
  // whatever stripes. The entry at the end is as in ForEachBin.
  template <typename Visit>
  void ForEachBlock(const ParallelFor& parallel, int64_t cost, const Visit& visit) const {
    parallel(num_ids_, cost, [&](int64_t begin, int64_t end) {
      for (; begin < end; begin += kBlock) {
        visit(&entries_[begin], &entries_[std::min(begin + kBlock, end)]);
      }
    });
  }

 private:
  const int64_t num_ids_;
  const std::unique_ptr<Entry[]> entries_;  // and one after the last
};

// Finds the rows of a stripe's entries in order, and prefetches those of later entries. The caller
// holds the stripe's lock as long as it lives.
class RowFinder {
 public:
  using Entry = StripeOrder::Entry;
  // `arena` has the floats of the rows; null if they are behind the headers.
  RowFinder(const Stripe& stripe, const BodyArena* arena, const Entry* first, const Entry* last)
      EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex)
      : stripe_(stripe), arena_(arena), last_(last) {
    const auto end = [&](int ahead) { return std::min(last, first + ahead); };
    for (const Entry* e = first; e < end(kSegments); ++e) stripe.PrefetchSegment(e->hash);
    for (const Entry* e = first; e < end(kEntries); ++e) stripe.PrefetchEntry(e->hash);
    for (const Entry* e = first; e < end(kChunks); ++e) {
      probably_[e - first] = stripe.PrefetchChunk(e->hash);
    }
    for (const Entry* e = first; e < end(kRows); ++e) stripe.PrefetchRow(probably_[e - first]);
    if (__builtin_expect(arena != nullptr, 0)) {
      for (const Entry* e = first; e < end(kFloats); ++e) PrefetchFloats(probably_[e - first]);
    }
  }
  // Returns the number of the next entry's row, or kNone. `id` is the entry's id.
  uint32_t Next(const Entry* e, int64_t id) NO_THREAD_SAFETY_ANALYSIS {
    const uint32_t number = stripe_.Find(e->hash, id, probably_[at_ % kChunks]);
    if (last_ - e > kSegments) stripe_.PrefetchSegment(e[kSegments].hash);
    if (last_ - e > kEntries) stripe_.PrefetchEntry(e[kEntries].hash);
    if (last_ - e > kChunks) probably_[at_ % kChunks] = stripe_.PrefetchChunk(e[kChunks].hash);
    if (last_ - e > kRows) stripe_.PrefetchRow(probably_[(at_ + kRows) % kChunks]);
    if (__builtin_expect(arena_ != nullptr, 0) && last_ - e > kFloats) {
      PrefetchFloats(probably_[(at_ + kFloats) % kChunks]);
    }
    ++at_;
    return number;
  }

 private:
  static constexpr int kFloats = 4, kRows = 8, kChunks = 16, kEntries = 24, kSegments = 32;

  [[gnu::always_inline]] void PrefetchFloats(uint32_t probably) const NO_THREAD_SAFETY_ANALYSIS {
    if (probably == kNone) return;
    const uint32_t place = PlaceOf(*stripe_.Row(probably));
    if ((place & kOnDisk) == 0 && place != kNoPlace) arena_->Prefetch(place);
  }

  const Stripe& stripe_;
  const BodyArena* const arena_;
  const Entry* const last_;
  uint32_t probably_[kChunks];  // rows of the next entries
  uint32_t at_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_STRIPE_ORDER_H_
