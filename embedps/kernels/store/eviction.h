// Which rows of a table go: by age, by norm, and the worst at a limit.
#ifndef EMBEDPS_KERNELS_STORE_EVICTION_H_
#define EMBEDPS_KERNELS_STORE_EVICTION_H_

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <iterator>

#include "embedps/kernels/runtime/settings.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

// Which row is the worst at a limit.
enum class EvictionOrder { kLeastRecent, kLeastFrequent };
inline constexpr const char* kEvictionOrders[] = {"least_recent", "least_frequent"};

// Why a row went, as RowStoreStats counts it. kNone is last: the row stays.
enum class EvictionCause { kAge, kNorm, kLimit, kHand, kNone };
inline constexpr const char* kEvictionCauses[] = {"age", "norm", "limit", "hand"};
inline constexpr int kNumEvictionCauses = std::size(kEvictionCauses);
static_assert(kNumEvictionCauses == static_cast<int>(EvictionCause::kNone));

// A table's policies on one shard; 0 is none.
struct EvictionConfig {
  int64_t ttl_steps = 0;         // a row goes if its last step is more than this before the store's
  bool has_oldest_step = false;  // a row goes if its last step is before SetOldestStep's
  float min_norm = 0;            // an updated row goes if its embedding's L2 norm is below
  int64_t max_rows = 0;          // at these limits, a new row displaces the worst of some others
  int64_t max_bytes = 0;
  EvictionOrder order = EvictionOrder::kLeastRecent;

  void Read(Settings* settings) {
    settings->Number("TimeToLive.steps", 0, INT64_MAX, &ttl_steps);
    int64_t event_secs = 0;
    settings->Number("TimeToLive.event_secs", 0, INT64_MAX, &event_secs);
    has_oldest_step = event_secs > 0;
    settings->Number("MinNorm.norm", 0, FLT_MAX, &min_norm);
    settings->Number("SizeLimit.max_rows", 0, INT64_MAX, &max_rows);
    settings->Number("SizeLimit.max_bytes", 0, INT64_MAX, &max_bytes);
    settings->Name("SizeLimit.order", kEvictionOrders, &order);
  }

  // Whether a sweep can remove a row.
  bool sweeps() const { return ttl_steps > 0 || has_oldest_step || min_norm > 0; }

  // Whether a sweep is due so many steps after the last one: a row goes at most a sixteenth of its
  // time too late.
  bool IsSweepDue(int64_t steps) const {
    return (ttl_steps > 0 && steps >= std::max<int64_t>(1, ttl_steps / kSweepsPerTtl)) ||
           (min_norm > 0 && steps >= kNormSweepSteps);
  }

  // Says why a sweep removes a live row at step `now`, or kNone. Rows whose last step is before
  // `oldest` are too old. `row` is read under its stripe's lock.
  EvictionCause CauseOf(const RowHeader& row, const RowLayout& layout, uint32_t oldest,
                        uint32_t now) const {
    if (row.last_step < oldest || (ttl_steps > 0 && int64_t{row.last_step} + ttl_steps < now)) {
      return EvictionCause::kAge;
    }
    if (min_norm > 0 && row.frequency > 0) {
      // No update has changed it since it went there.
      if (layout.IsOnDisk(row)) {
        return RowLayout::IsSmallOnDisk(row) ? EvictionCause::kNorm : EvictionCause::kNone;
      }
      const double least_squared = static_cast<double>(min_norm) * min_norm;
      if (layout.SquaredNorm(row, least_squared) < least_squared) return EvictionCause::kNorm;
    }
    return EvictionCause::kNone;
  }

  static constexpr int64_t kSweepsPerTtl = 16;
  static constexpr int64_t kNormSweepSteps = 256;
};

// What a row is worth at a limit: the least goes first. A row counts as updated once from its
// creation on. Otherwise a new row would be the worst by frequency until its first update.
inline uint64_t WorthOf(EvictionOrder order, uint32_t last_step, uint32_t frequency) {
  frequency = std::max(frequency, 1u);
  if (order == EvictionOrder::kLeastRecent) return uint64_t{last_step} << 32 | frequency;
  return uint64_t{frequency} << 32 | last_step;
}

// Rows that a displacement compares. With 16 of them spread over a stripe, the row that goes is on
// average among the worst 6%.
inline constexpr uint32_t kCandidates = 16;

// Returns a row number that may be too large by less than a few, from the first on again.
inline uint32_t Wrap(uint32_t number, uint32_t used) {
  return number < used ? number : number % used;
}

// The row numbers that a displacement compares: at equal distances, from a hand on, which is below
// the number of rows that the stripe has used. The caller holds its lock as long as they live.
class Candidates {
 public:
  Candidates(const Stripe& stripe, uint32_t hand) EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex)
      : stripe_(stripe), count_(std::min(kCandidates, stripe.used())) {
    const uint32_t used = stripe.used(), distance = Distance(used);
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t number = hand + i * distance;
      numbers_[i] = number < used ? number : number - used;
    }
  }

  // Whether a row number below `used` is among the candidates from a hand on.
  static bool Has(uint32_t number, uint32_t hand, uint32_t used) {
    const uint32_t ahead = number >= hand ? number - hand : number + used - hand;
    const uint32_t distance = Distance(used);
    return ahead < kCandidates * distance && ahead % distance == 0;
  }

  // Prefetches them and those of the next hands, `hands` in all. Except at the end of a chunk, the
  // next hand's candidates are the rows after them.
  [[gnu::always_inline]] void Prefetch(uint32_t hands) const NO_THREAD_SAFETY_ANALYSIS {
    for (uint32_t i = 0; i < count_; ++i) {
      const char* row = reinterpret_cast<const char*>(stripe_.Row(numbers_[i]));
      for (uint32_t k = 0; k < hands; ++k) __builtin_prefetch(row + k * stripe_.row_bytes());
    }
  }

  // Returns the worst live one, the first of several, or kNone. Prefetches those of the next hand.
  uint32_t Worst(EvictionOrder order) const NO_THREAD_SAFETY_ANALYSIS {
    uint32_t worst = kNone;
    uint64_t least = UINT64_MAX;  // more than any row's: a frequency has 29 bits
    for (uint32_t i = 0; i < count_; ++i) {
      const RowHeader* row = stripe_.Row(numbers_[i]);
      __builtin_prefetch(reinterpret_cast<const char*>(row) + stripe_.row_bytes());
      const uint64_t worth =
          row->live ? WorthOf(order, row->last_step, row->frequency) : UINT64_MAX;
      // Selections, not branches: nothing predicts them.
      worst = worth < least ? numbers_[i] : worst;
      least = std::min(worth, least);
    }
    return worst;
  }

 private:
  static uint32_t Distance(uint32_t used) { return used < kCandidates ? 1 : used / kCandidates; }

  const Stripe& stripe_;
  const uint32_t count_;
  uint32_t numbers_[kCandidates];
};

// Returns the worst of a stripe's candidates, or kNone if the stripe has no row. The candidates are
// the live ones of kCandidates row numbers from the stripe's hand on; if none of them lives, it is
// the next live row. The hand moves by one.
inline uint32_t WorstCandidate(EvictionOrder order, Stripe* stripe)
    EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex) {
  const uint32_t used = stripe->used();
  if (stripe->live() == 0) return kNone;
  uint32_t& hand = stripe->hand;
  hand = Wrap(hand, used);
  const Candidates candidates(*stripe, hand);
  candidates.Prefetch(1);
  uint32_t worst = candidates.Worst(order);
  while (worst == kNone) {
    stripe->displacements.in_visit = 0;
    hand = Wrap(hand + 1, used);
    if (stripe->Row(hand)->live) worst = hand;
  }
  hand = Wrap(hand + 1, used);
  return worst;
}

// Begins a visit of a stripe, during which the caller holds its lock, and changes rows by
// displacements and inserts only. If the last visit displaced rows, this one will too: prefetches
// what its first displacement compares.
inline void BeginDisplacements(Stripe* stripe) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex) {
  if (stripe->displacements.in_visit > 0) {
    Candidates(*stripe, Wrap(stripe->hand, stripe->used())).Prefetch(3);
  }
  stripe->displacements.in_visit = 0;
}

// Returns what WorstCandidate returns, and moves the hand likewise, within a visit. Two
// displacements ago the choice was found already, and it stands if the rows that were replaced
// since are not among its candidates.
inline uint32_t NextDisplaced(EvictionOrder order, Stripe* stripe)
    EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex) {
  const Stripe::Displacements& known = stripe->displacements;
  const uint32_t used = stripe->used(), hand = stripe->hand;
  if (known.in_visit < 2 || known.next == kNone || Candidates::Has(known.changed[0], hand, used) ||
      Candidates::Has(known.changed[1], hand, used)) {
    return WorstCandidate(order, stripe);
  }
  stripe->hand = Wrap(hand + 1, used);
  return known.next;
}

// Notes that a row was displaced. Finds what the next displacements will choose and prefetches what
// they will use: the candidates of the third, and the row that the second will remove, where a new
// one will be, with its index entry. Each needs the memory that an earlier call prefetched. The
// first was the second of the call before.
inline void PrepareDisplacements(EvictionOrder order, uint32_t displaced, Stripe* stripe)
    EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex) {
  Stripe::Displacements& known = stripe->displacements;
  const uint32_t used = stripe->used();
  known.next = known.second;
  known.second = Candidates(*stripe, Wrap(stripe->hand + 1, used)).Worst(order);
  if (known.second != kNone) {
    stripe->PrefetchEntry(stripe->HashOf(stripe->Row(known.second)->id));
    stripe->PrefetchRow(known.second);
  }
  known.changed[0] = known.changed[1];
  known.changed[1] = displaced;
  ++known.in_visit;
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_EVICTION_H_
