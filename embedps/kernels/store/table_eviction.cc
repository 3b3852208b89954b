#include "embedps/kernels/store/table_eviction.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/counter_map.h"
#include "embedps/kernels/store/row_store.h"

namespace embedps {
namespace {

constexpr uint32_t kSliceRows = 256;  // rows to visit while holding a stripe's lock
constexpr int64_t kFirstRoom = int64_t{kStripes} * kFirstChunkRows;
constexpr int64_t kChunkParts = 64;  // a chunk of each stripe is one of these parts of a limit
constexpr int64_t kNoLimit = int64_t{1} << 62;  // leaves room to add

// Bytes that a byte limit counts for a row.
int64_t CountedBytes(const RowLayout& layout) {
  return static_cast<int64_t>(layout.row_bytes()) + TableEviction::kBookkeepingBytes;
}

// How many rows more than a limit a table may have while records are loaded: stripes load one after
// the other, so some may have grown before others have shrunk.
int64_t RowSlack(int64_t max_rows) { return max_rows / 64 + kFirstRoom; }

// How many rows more than its limit a table may have memory for while records are loaded. What
// other shards held within their limits needs more here:
// - half a chunk per stripe, where full chunks were;
// - what a shard gets beyond its part: the hash spreads rows evenly, but not exactly;
// - the most that each stripe had in the course of a chain, as no other takes its chunks. That is
//   about 10 times the root of the rows, and what is beyond the part is below 6 times it;
// - what each shard counts without rows.
int64_t RoomSlack(int64_t limit, const RowLayout& layout, int64_t evicted_bytes) {
  return limit / kChunkParts + 16 * static_cast<int64_t>(std::sqrt(static_cast<double>(limit))) +
         kFirstRoom + (TableEviction::kTableBytes + evicted_bytes) / CountedBytes(layout);
}

}  // namespace

int64_t TableEviction::LeastBytes(const RowLayout& layout, int64_t evicted_bytes) {
  return kTableBytes + evicted_bytes + kFirstRoom * CountedBytes(layout);
}

int64_t TableEviction::LeastBytes(const RowLayout& layout, const AdmissionConfig& admission,
                                  int64_t evicted_bytes) {
  const int64_t least = LeastBytes(layout, evicted_bytes);
  if (!admission.counts()) return least;
  return std::max(least * kCounterParts / (kCounterParts - 1) + 1,
                  kCounterParts * kLeastCounterBytes);
}

int64_t TableEviction::LeastServerBytes(const RowLayout& layout, const AdmissionConfig& admission,
                                        int64_t evicted_bytes) {
  return LeastBytes(layout, evicted_bytes) + (admission.counts() ? kLeastCounterBytes : 0);
}

int TableEviction::ChunkBits(int64_t max_bytes, const RowLayout& layout) {
  const int64_t rows = max_bytes / kChunkParts / kStripes / CountedBytes(layout);
  int bits = kFirstChunkBits;
  while (bits < kChunkBits && rows >> (bits + 1) > 0) ++bits;
  return bits;
}

int64_t TableEviction::CounterBytes(const EvictionConfig& config,
                                    const AdmissionConfig& admission) {
  return admission.counts() ? config.max_bytes / kCounterParts : 0;
}

double TableEviction::PoolShare(const RowLayout& layout) {
  return static_cast<double>(layout.row_bytes() + kIndexBytes) / CountedBytes(layout);
}

TableEviction::TableEviction(const EvictionConfig& config, const AdmissionConfig& admission,
                             const RowLayout& layout, int64_t evicted_bytes,
                             const std::unique_ptr<Stripe>* stripes, std::atomic<int64_t>* rows,
                             ServerMemory* server_memory, OnEvicted on_evicted)
    : config_(config),
      evicted_bytes_(evicted_bytes),
      max_room_(config.max_bytes == 0
                    ? kNoLimit
                    : std::max(kFirstRoom, (config.max_bytes - CounterBytes(config, admission) -
                                            kTableBytes - evicted_bytes) /
                                               CountedBytes(layout))),
      layout_(layout),
      stripes_(stripes),
      rows_(rows),
      server_memory_(server_memory),
      on_evicted_(std::move(on_evicted)),
      room_(kFirstRoom) {
  if (server_memory_ != nullptr) server_memory_->Charge(LeastBytes(layout, evicted_bytes));
}

TableEviction::~TableEviction() {
  Reset();
  if (server_memory_ != nullptr) server_memory_->Release(LeastBytes(layout_, evicted_bytes_));
}

bool TableEviction::AtRowLimit(int64_t slack_rows) const {
  return config_.max_rows > 0 &&
         rows_->load(std::memory_order_relaxed) > config_.max_rows + slack_rows;
}

bool TableEviction::ChargeRow(const Stripe& stripe, bool is_record) {
  // The first rows of every stripe are charged from the beginning.
  if (!limits_bytes() || !stripe.NeedsRoom() || stripe.room() == 0) return true;
  const int64_t more = stripe.NextRoom() - stripe.room();
  const int64_t slack = is_record ? RoomSlack(max_room_, layout_, evicted_bytes_) : 0;
  if (room_.fetch_add(more, std::memory_order_relaxed) + more <= max_room_ + slack &&
      (server_memory_ == nullptr || server_memory_->Charge(more * CountedBytes(layout_)))) {
    return true;
  }
  room_.fetch_sub(more, std::memory_order_relaxed);
  return false;
}

bool TableEviction::IsFull(const Stripe& stripe) const {
  if (config_.max_rows > 0 && rows_->load(std::memory_order_relaxed) >= config_.max_rows) {
    return true;
  }
  if (!limits_bytes() || !stripe.NeedsRoom() || stripe.room() == 0) return false;
  const int64_t more = stripe.NextRoom() - stripe.room();
  return room_.load(std::memory_order_relaxed) + more > max_room_ ||
         (server_memory_ != nullptr && !server_memory_->HasRoom(more * CountedBytes(layout_)));
}

bool TableEviction::Displace(Stripe* stripe) { return IsFull(*stripe) && DisplaceWorst(stripe); }

bool TableEviction::MakePlace(Stripe* stripe) {
  if (!AtRowLimit(0) && ChargeRow(*stripe, false)) {
    stripe->displacements.in_visit = 0;  // the row gets another place
    return true;
  }
  if (DisplaceWorst(stripe)) {
    rows_->fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  return DisplaceElsewhere(stripe) && ChargeRow(*stripe, false);
}

bool TableEviction::DisplaceWorst(Stripe* stripe) {
  const uint32_t worst = NextDisplaced(config_.order, stripe);
  if (worst == kNone) return false;
  RemoveUncounted(stripe, worst, EvictionCause::kLimit, &stripe->open_removed);
  ++stripe->displacements.uncounted;
  PrepareDisplacements(config_.order, worst, stripe);
  return true;
}

bool TableEviction::MakePlaceForRecord(int64_t id, uint32_t last_step, uint32_t frequency,
                                       Stripe* stripe) {
  if (!AtRowLimit(RowSlack(config_.max_rows)) && ChargeRow(*stripe, true)) return true;
  const uint32_t worst = WorstCandidate(config_.order, stripe);
  if (worst != kNone) {
    const RowHeader* row = stripe->Row(worst);
    if (WorthOf(config_.order, row->last_step, row->frequency) <
        WorthOf(config_.order, last_step, frequency)) {
      Remove(stripe, worst, EvictionCause::kLimit, &stripe->displaced_by_records);
      return true;
    }
  }
  Count(EvictionCause::kLimit, 1);
  stripe->displaced_by_records.Append(id);
  return false;
}

bool TableEviction::DisplaceElsewhere(const Stripe* full) {
  int at = 0;
  while (stripes_[at].get() != full) ++at;
  for (int i = 1; i < kStripes; ++i) {
    Stripe* other = stripes_[(at + i) % kStripes].get();
    // Another thread may hold its lock and wait for the caller's.
    if (!other->mutex.TryLock()) continue;
    const MutexLock lock(&other->mutex, std::adopt_lock);
    const uint32_t worst = WorstCandidate(config_.order, other);
    if (worst == kNone) continue;
    Remove(other, worst, EvictionCause::kLimit);
    return true;
  }
  return false;
}

void TableEviction::DisplaceSurplus() {
  for (int i = 0; AtRowLimit(0); i = (i + 1) % kStripes) {
    const MutexLock lock(&stripes_[i]->mutex);
    const uint32_t worst = WorstCandidate(config_.order, stripes_[i].get());
    if (worst != kNone) Remove(stripes_[i].get(), worst, EvictionCause::kLimit);
  }
}

void TableEviction::SetOldestStep(uint32_t step) {
  oldest_step_.store(step, std::memory_order_relaxed);
}

bool TableEviction::IsSweepDue(int64_t steps) const {
  const int64_t oldest = oldest_step_.load(std::memory_order_relaxed);
  const int64_t passed = oldest - swept_oldest_step_.load(std::memory_order_relaxed);
  // The steps since the oldest one are the time to live at the stream's present pace.
  if (passed > 0 && passed * EvictionConfig::kSweepsPerTtl >= steps - oldest) return true;
  return config_.IsSweepDue(steps - swept_steps_.load(std::memory_order_relaxed));
}

bool TableEviction::Sweep(int64_t steps, const Sweeper::Pause& pause) {
  if (!config_.sweeps()) return true;
  swept_steps_.store(steps, std::memory_order_relaxed);
  swept_oldest_step_.store(oldest_step_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  const auto now = static_cast<uint32_t>(std::max<int64_t>(steps, 1) - 1);
  for (int i = 0; i < kStripes; ++i) {
    Stripe* stripe = stripes_[i].get();
    for (uint32_t first = 0;; first += kSliceRows) {
      {
        const MutexLock lock(&stripe->mutex);
        if (first >= stripe->used()) break;
        SweepSlice(stripe, first, now);
      }
      if (!pause()) return false;
    }
  }
  return true;
}

void TableEviction::SweepSlice(Stripe* stripe, uint32_t first, uint32_t now) {
  const uint32_t last = std::min(first + kSliceRows, stripe->used());
  const uint32_t oldest = oldest_step_.load(std::memory_order_relaxed);
  for (uint32_t number = first; number < last; ++number) {
    const RowHeader* row = stripe->Row(number);
    if (!row->live) continue;
    const EvictionCause cause = config_.CauseOf(*row, layout_, oldest, now);
    if (cause != EvictionCause::kNone) Remove(stripe, number, cause);
  }
}

int64_t TableEviction::Evict(uint32_t step, uint32_t max_frequency) {
  int64_t removed = 0;
  for (int i = 0; i < kStripes; ++i) {
    Stripe* stripe = stripes_[i].get();
    for (uint32_t first = 0;; first += kSliceRows) {
      const MutexLock lock(&stripe->mutex);
      if (first >= stripe->used()) break;
      const uint32_t last = std::min(first + kSliceRows, stripe->used());
      for (uint32_t number = first; number < last; ++number) {
        const RowHeader* row = stripe->Row(number);
        if (!row->live || row->last_step >= step || row->frequency >= max_frequency) continue;
        Remove(stripe, number, EvictionCause::kHand);
        ++removed;
      }
    }
  }
  return removed;
}

void TableEviction::Remove(Stripe* stripe, uint32_t number, EvictionCause cause,
                           BlockList<int64_t>* removed) {
  RemoveUncounted(stripe, number, cause, removed);
  rows_->fetch_sub(1, std::memory_order_relaxed);
  Count(cause, 1);
}

void TableEviction::RemoveUncounted(Stripe* stripe, uint32_t number, EvictionCause cause,
                                    BlockList<int64_t>* removed) {
  const RowHeader* row = stripe->Row(number);
  const int64_t id = row->id;
  if (on_evicted_) on_evicted_(*row, cause);
  if (row->saved) removed->Append(id);
  stripe->RemoveRow(stripe->HashOf(id), number);
}

void TableEviction::Reset() {
  const int64_t room = room_.exchange(kFirstRoom, std::memory_order_relaxed);
  if (server_memory_ != nullptr) {
    server_memory_->Release((room - kFirstRoom) * CountedBytes(layout_));
  }
  swept_steps_.store(0, std::memory_order_relaxed);
  swept_oldest_step_.store(0, std::memory_order_relaxed);
}

std::array<int64_t, kNumEvictionCauses> TableEviction::Counts() const {
  std::array<int64_t, kNumEvictionCauses> counts;
  for (int i = 0; i < kNumEvictionCauses; ++i) {
    counts[i] = counts_[i].load(std::memory_order_relaxed);
  }
  return counts;
}

int64_t RowStore::Remove(int table, const int64_t* ids, int64_t num_ids) {
  int64_t removed = 0;
  for (int64_t i = 0; i < num_ids; ++i) {
    const IdHashes hashes = HashesOf(salts_[table], ids[i]);
    const int bin = table * kStripes + StripeOf(hashes.row);
    Stripe& s = *stripes_[bin];
    const MutexLock lock(&s.mutex);
    const uint32_t number = s.Find(hashes.place, ids[i]);
    if (number == kNone) {
      CounterMap* counters = counters_[bin].get();
      if (counters != nullptr && counters->Count(hashes, ids[i], 0) > 0) {
        counters->Erase(hashes, ids[i]);
      }
      continue;
    }
    if (s.Row(number)->saved) s.open_removed.Append(ids[i]);
    s.RemoveRow(hashes.place, number);
    ++removed;
  }
  table_rows_[table].fetch_sub(removed, std::memory_order_relaxed);
  return removed;
}

int64_t RowStore::Evict(int table, uint32_t step, uint32_t max_frequency) {
  return evictions_[table]->Evict(step, max_frequency);
}

void RowStore::Sweep(const Sweeper::Pause& pause) {
  for (const auto& eviction : evictions_) {
    if (!eviction->Sweep(steps_.load(std::memory_order_relaxed), pause)) return;
  }
}

bool RowStore::IsSweepDue() const {
  const int64_t steps = steps_.load(std::memory_order_relaxed);
  return std::any_of(evictions_.begin(), evictions_.end(),
                     [steps](const auto& eviction) { return eviction->IsSweepDue(steps); });
}

}  // namespace embedps
