// Applies one table's eviction policies to its stripes.
#ifndef EMBEDPS_KERNELS_STORE_TABLE_EVICTION_H_
#define EMBEDPS_KERNELS_STORE_TABLE_EVICTION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "embedps/kernels/store/admission.h"
#include "embedps/kernels/store/eviction.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/server_memory.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/sweeper.h"

namespace embedps {

class TableEviction {
 public:
  // A visit of a stripe, during which the caller holds its lock, and changes rows by displacements
  // and inserts only. Counts at its end what it displaced: if each row did, cores that visit other
  // stripes would wait for each other.
  class Visit {
   public:
    Visit(TableEviction* eviction, Stripe* stripe) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex)
        : eviction_(eviction), stripe_(stripe) {
      BeginDisplacements(stripe_);
    }
    ~Visit() {
      const int displaced = std::exchange(stripe_->displacements.uncounted, 0);
      if (displaced > 0) eviction_->Count(EvictionCause::kLimit, displaced);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    TableEviction* const eviction_;
    Stripe* const stripe_;
  };

  // Bytes that a byte limit counts for each row besides the row itself: its share of the index, of
  // which a segment has 4 bytes per entry and is split when four fifths are in use; 28 of lists and
  // sets; and one of the pointers to chunks. The row may be in the sets of touched rows, with a bit
  // in each, and a row that it displaced in the lists of removed ids, with 8 bytes each. Blocks
  // take a fifteenth more. Nine of these bytes are not used.
  static constexpr int64_t kIndexBytes = 11;
  static constexpr int64_t kBookkeepingBytes = kIndexBytes + 29;

  // Bytes that a byte limit counts for a table without rows: its stripes, with the blocks of each
  // one's lists and sets that are not full, and the least memory of three vectors of pointers and
  // of those of the sets, which have one for 1024 rows.
  static constexpr int64_t kTableBytes = kStripes * int64_t{1152};
  static_assert(sizeof(Stripe) + 4 * PagePool::kBlockBytes + 3 * 64 + 2 * 16 <= 1152);

  // Called with each row that is about to go, under its stripe's lock.
  using OnEvicted = std::function<void(const RowHeader&, EvictionCause)>;

  // Returns the least byte limit without counters: each stripe must have room for its first rows.
  // `evicted_bytes` is the table's part of what the files of evicted rows take.
  static int64_t LeastBytes(const RowLayout& layout, int64_t evicted_bytes);
  // Returns the least byte limit.
  static int64_t LeastBytes(const RowLayout& layout, const AdmissionConfig& admission,
                            int64_t evicted_bytes);
  // Returns what a server's limit counts for a table without rows and counters.
  static int64_t LeastServerBytes(const RowLayout& layout, const AdmissionConfig& admission,
                                  int64_t evicted_bytes);

  // Returns the bits of a chunk's number of rows under a byte limit of a table. The last chunk of a
  // stripe is half empty on average; all of them are at most a 64th of the limit, or have
  // kFirstChunkRows.
  static int ChunkBits(int64_t max_bytes, const RowLayout& layout);

  // Returns the part of the table's byte limit that counters have; 0 if there is no limit.
  static int64_t CounterBytes(const EvictionConfig& config, const AdmissionConfig& admission);

  // `stripes` are the table's; `rows` counts its live rows. They, `layout` and `server_memory`
  // outlive the object. `on_evicted` may be null. The server's memory, to which LeastBytes are
  // charged, is null if the server has no limit.
  TableEviction(const EvictionConfig& config, const AdmissionConfig& admission,
                const RowLayout& layout, int64_t evicted_bytes,
                const std::unique_ptr<Stripe>* stripes, std::atomic<int64_t>* rows,
                ServerMemory* server_memory, OnEvicted on_evicted);
  ~TableEviction();

  const EvictionConfig& config() const { return config_; }
  bool limits_bytes() const { return config_.max_bytes > 0 || server_memory_ != nullptr; }
  bool displaces() const { return config_.max_rows > 0 || limits_bytes(); }
  bool any() const { return config_.sweeps() || displaces(); }

  // The most bytes of rows and index under the byte limit, if there is one.
  size_t MostPoolBytes() const { return max_room_ * (layout_.row_bytes() + kIndexBytes); }
  // Returns the share of rows and index in what is charged for a row.
  static double PoolShare(const RowLayout& layout);

  // At a limit, makes a place for a new row in a stripe that the caller visits: displaces the worst
  // of the stripe's candidates. `rows` stays as it is. Returns false below the limits, and if the
  // stripe has no row; then MakePlace may make one.
  bool Displace(Stripe* stripe) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);

  // Makes a place for a new row in a stripe that the caller visits; the row is already counted in
  // `rows`. At a limit it displaces the worst of the stripe's candidates, or if the stripe has no
  // row, of the next stripe's that has one and is not locked. Returns false if there is no such
  // row.
  bool MakePlace(Stripe* stripe) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);

  // The same while records are loaded. The table's limits are higher then, so that what another
  // number of shards held within its byte limit has a place (see RoomSlack). The next delta removes
  // what is displaced, unless a later record brings it back. Returns false if the record itself is
  // the worst: it has no place.
  bool MakePlaceForRecord(int64_t id, uint32_t last_step, uint32_t frequency, Stripe* stripe)
      EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);

  // Displaces rows until their number is within the limit, once all records are loaded: of each
  // stripe in turn its worst candidate. Locks the stripes.
  void DisplaceSurplus();

  // Displaces a row of a stripe that the caller visits, as a limit does.
  void Displace(Stripe* stripe, uint32_t number) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex) {
    stripe->displacements.in_visit = 0;
    Remove(stripe, number, EvictionCause::kLimit);
  }

  // Removes the rows that are too old or too small, slice by slice. `steps` is the last step that
  // updated a row of the store, plus 1. Returns false if it ended early because `pause`, which it
  // calls between slices, did.
  bool Sweep(int64_t steps, const Sweeper::Pause& pause);

  // Whether a sixteenth of the time to live has passed since the last sweep, or as many steps as
  // the norms wait for.
  bool IsSweepDue(int64_t steps) const;

  // Removes the rows whose last step is before `step` and that have fewer than `max_frequency`
  // updates. Returns how many rows it removed.
  int64_t Evict(uint32_t step, uint32_t max_frequency);

  // Rows whose last step is before this one go, if the config has_oldest_step.
  void SetOldestStep(uint32_t step);

  // Forgets what the stripes held, once they are cleared.
  void Reset();

  // Counts the rows that went, by cause.
  std::array<int64_t, kNumEvictionCauses> Counts() const;

 private:
  void SweepSlice(Stripe* stripe, uint32_t first, uint32_t now)
      EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);
  bool AtRowLimit(int64_t slack_rows) const;
  // Whether a new row of a stripe passes a limit. Only reads: at a limit every new row asks, and
  // each write would make the other cores wait.
  bool IsFull(const Stripe& stripe) const EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  bool DisplaceWorst(Stripe* stripe) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);
  void Count(EvictionCause cause, int64_t rows) {
    counts_[static_cast<int>(cause)].fetch_add(rows, std::memory_order_relaxed);
  }
  // Charges the memory for the next row of a stripe; returns false at the byte limits, of which the
  // table's is higher while records are loaded.
  bool ChargeRow(const Stripe& stripe, bool is_record) EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Removes a row of a locked stripe; the next delta has its removal.
  void Remove(Stripe* stripe, uint32_t number, EvictionCause cause)
      EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex) {
    Remove(stripe, number, cause, &stripe->open_removed);
  }
  void Remove(Stripe* stripe, uint32_t number, EvictionCause cause, BlockList<int64_t>* removed)
      EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);
  void RemoveUncounted(Stripe* stripe, uint32_t number, EvictionCause cause,
                       BlockList<int64_t>* removed) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);
  bool DisplaceElsewhere(const Stripe* full);

  const EvictionConfig config_;
  const int64_t evicted_bytes_;
  const int64_t max_room_;  // rows that the byte limit allows memory for
  const RowLayout& layout_;
  const std::unique_ptr<Stripe>* const stripes_;
  std::atomic<int64_t>* const rows_;
  ServerMemory* const server_memory_;
  const OnEvicted on_evicted_;
  std::atomic<int64_t> room_;  // rows that the stripes have memory for
  std::array<std::atomic<int64_t>, kNumEvictionCauses> counts_{};
  std::atomic<uint32_t> oldest_step_{0};
  std::atomic<int64_t> swept_steps_{0};         // `steps` of the last sweep
  std::atomic<uint32_t> swept_oldest_step_{0};  // the oldest step of the last sweep
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_TABLE_EVICTION_H_
