// Which rows of a table go: by age, by norm, and the worst at a limit.
#ifndef EMBEDPS_KERNELS_STORE_EVICTION_H_
#define EMBEDPS_KERNELS_STORE_EVICTION_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "embedps/kernels/store/stripe.h"

namespace embedps {

// Which row is the worst at a limit. kEvictionOrders has the names.
enum class EvictionOrder { kLeastRecent, kLeastFrequent };

// Why a row went, as RowStoreStats counts it.
enum class EvictionCause { kAge, kNorm, kLimit, kHand };
inline constexpr int kNumEvictionCauses = 4;

// A table's policies on one shard; 0 is none.
struct EvictionConfig {
  int64_t ttl_steps = 0;         // a row goes if its last step is more than this before the store's
  bool has_oldest_step = false;  // a row goes if its last step is before SetOldestStep's
  float min_norm = 0;            // an updated row goes if its embedding's L2 norm is below
  int64_t max_rows = 0;          // at these limits, a new row displaces the worst of some others
  int64_t max_bytes = 0;
  EvictionOrder order = EvictionOrder::kLeastRecent;

  bool sweeps() const { return ttl_steps > 0 || has_oldest_step || min_norm > 0; }
};

// What a row is worth at a limit: the least goes first. A row counts as updated once from its
// creation on. Otherwise a new row would be the worst by frequency until its first update.
inline std::pair<uint32_t, uint32_t> WorthOf(EvictionOrder order, uint32_t last_step,
                                             uint32_t frequency) {
  frequency = std::max(frequency, 1u);
  if (order == EvictionOrder::kLeastRecent) return {last_step, frequency};
  return {frequency, last_step};
}

// Rows that a displacement compares. With 16 of them spread over a stripe, the row that goes is on
// average among the worst 6%.
inline constexpr uint32_t kCandidates = 16;

// Returns the worst of a stripe's candidates, or kNone if the stripe has no row. The candidates are
// the live ones of kCandidates row numbers at equal distances, from the stripe's hand on; if none
// of them lives, it is the next live row. The hand moves by one.
inline uint32_t WorstCandidate(EvictionOrder order, Stripe* stripe) {
  const uint32_t used = stripe->used();
  if (stripe->live() == 0) return kNone;
  const uint32_t count = std::min(kCandidates, used), distance = used / count;
  uint32_t& hand = stripe->hand;
  hand %= used;
  uint32_t numbers[kCandidates];
  for (uint32_t i = 0; i < count; ++i) {
    numbers[i] = (hand + i * distance) % used;
    __builtin_prefetch(stripe->Row(numbers[i]));
  }
  uint32_t worst = kNone;
  std::pair<uint32_t, uint32_t> least;
  const auto compare = [&](uint32_t number) {
    const RowHeader* row = stripe->Row(number);
    if (!row->live) return;
    const auto worth = WorthOf(order, row->last_step, row->frequency);
    if (worst != kNone && worth >= least) return;
    worst = number;
    least = worth;
  };
  for (uint32_t i = 0; i < count; ++i) compare(numbers[i]);
  while (worst == kNone) {
    hand = (hand + 1) % used;
    compare(hand);
  }
  hand = (hand + 1) % used;
  return worst;
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_EVICTION_H_
