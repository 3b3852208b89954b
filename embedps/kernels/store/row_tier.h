// The rows of a store in memory and on disk: brings them in, and lets the coldest go.
#ifndef EMBEDPS_KERNELS_STORE_ROW_TIER_H_
#define EMBEDPS_KERNELS_STORE_ROW_TIER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/body_arena.h"
#include "embedps/kernels/store/hot_rows.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/row_place.h"
#include "embedps/kernels/store/spill_log.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/tier_memory.h"

namespace embedps {

// Every row has a row number, a head and an index entry in memory, as rows have in a store that is
// in memory alone; only the floats of some are in the log. So all that does not read floats is the
// same code, and a store with a tier holds the same bits as one without.
//
// A row that came into memory keeps its record on disk until its floats change, and goes back to
// it: a store that is only read writes each row once. Where the record is, its slot knows.
//
// Who needs floats asks first, without a lock, which of the rows are on disk, and reads these
// together (Fetched). A row that is spilled between that and its use is read again, alone.
//
// The first record that is damaged or cannot be read fails every call from then on: the rows must
// come from a checkpoint again.
class RowTier : private TierMemory::Holder {
 public:
  // Rows that were read from disk, each with a key of the caller's.
  class Fetched {
   public:
    bool empty() const { return reads_.empty(); }
    void Append(const Fetched& other) {
      reads_.insert(reads_.end(), other.reads_.begin(), other.reads_.end());
    }
    void clear() { reads_.clear(); }

   private:
    friend class RowTier;
    const SpillLog::Read* Find(int64_t key) const;

    std::vector<SpillLog::Read> reads_;  // by key, once they are fetched
    std::unique_ptr<char[]> payloads_;
  };

  // A copy of a row that its store does not have in memory.
  class Image {
   public:
    explicit Image(RowTier* tier) : tier_(tier) {}  // null: it will have no row
    ~Image();
    Image(const Image&) = delete;
    Image& operator=(const Image&) = delete;

   private:
    friend class RowTier;
    RowTier* const tier_;
    uint32_t slot_ = BodyArena::kNoSlot;
    RowHead head_;
  };

  struct Stats {
    std::vector<int64_t> rows_on_disk;  // of each table
    SpillLog::Stats log;
    int64_t late_reads = 0;  // of rows alone, under their stripe's lock
    int64_t evicted = 0;     // rows that went because the disk was full
  };

  // What the store tells.
  struct Owner {
    std::string group;
    const RowLayout* layout = nullptr;  // with `arena`
    BodyArena* arena = nullptr;
    const std::vector<std::unique_ptr<Stripe>>* stripes = nullptr;
    std::vector<float> min_norms;                 // of each table; 0 is none
    const std::atomic<int64_t>* steps = nullptr;  // the last one, plus 1
    std::function<bool()> is_busy;
    // Removes a row of a locked stripe, as a limit does.
    std::function<void(int bin, uint32_t number)> evict;
  };

  RowTier(std::shared_ptr<TierMemory> memory, Owner owner);
  ~RowTier() override;
  RowTier(const RowTier&) = delete;
  RowTier& operator=(const RowTier&) = delete;

  // Ends what runs beside other calls.
  void Stop() { log_.Stop(); }

  // Returns the least memory of a store of so many tables.
  static int64_t LeastBytes(const RowLayout& layout, int num_tables, const TierConfig& config);

  // Whether a row is on disk.
  bool has_spilled() const { return num_on_disk() > 0; }
  // Whether so many rows are on disk that a base or a delta reads them in the disk's order.
  bool has_many_on_disk() const { return num_on_disk() >= memory_->config().many_rows; }
  int64_t num_on_disk() const { return num_spilled_.load(std::memory_order_relaxed); }

  // Waits, if too much of the disk is taken by rows that are no longer there. The caller holds no
  // lock.
  void Pace() { log_.Pace(); }

  // Notes that a row is needed, if it is on disk. The caller holds its stripe's lock.
  void Want(int bin, uint32_t number, int64_t key, Fetched* fetched) const;
  // Reads what was noted. The caller holds no lock.
  Status Fetch(Fetched* fetched);

  // Visits rows on disk in the order in which they lie there, and holds the stripe's lock for each;
  // the floats are valid meanwhile. Before some of them it asks `begins`, without a lock. Both are
  // as of SpillLog::Scan, which leaves rows out.
  void Scan(const std::function<bool(int64_t rows)>& begins,
            const std::function<bool(int bin, uint32_t number, const char* floats)>& visit);

  // ---- the caller holds the stripe's lock ----------------------------------------------------

  // Gives a new row memory for its floats, or one whose floats will be written anew. In training an
  // update follows.
  void Begin(int bin, uint32_t number, bool is_training);
  void Renew(int bin, uint32_t number);

  // Brings a row into memory, to be written; returns false if it cannot be read.
  bool BringIn(int bin, uint32_t number, const Fetched& fetched, int64_t key);

  // Whether a row may come in ahead of its lookup, beside `more` of its stripe.
  bool TakesAhead(int bin, int64_t more) const { return stripes_[bin]->hot.TakesAhead(more); }

  // The same for a lookup that comes soon; does nothing if there is no place, or it was not read.
  void BringInAhead(int bin, uint32_t number, const Fetched& fetched, int64_t key);

  // Gives a row to a lookup, and brings it in if there is a place. In training an update follows,
  // which brings it in too. Null if it cannot be read. The result is valid until the next call, or
  // as long as `image`.
  const RowHeader* LookUp(int bin, uint32_t number, const Fetched& fetched, int64_t key,
                          bool is_training, Image* image);

  // Gives a row, and leaves it where it is.
  const RowHeader* View(int bin, uint32_t number, const Fetched& fetched, int64_t key,
                        Image* image);

  // The same of a row on disk, whose floats a Scan gives or are to be read.
  const RowHeader* Copy(const RowHeader& row, const char* floats, Image* image);
  const RowHeader* ViewOnDisk(int bin, const RowHeader& row, Image* image);

  // --------------------------------------------------------------------------------------------

  // Why the rows are lost, once a record cannot be read.
  Status failure() const;

  Stats stats() const;
  // Of a stripe's rows in memory, besides what the stripe counts. Under its lock.
  int64_t HotBytes(int bin) const { return stripes_[bin]->hot.MemoryBytes(); }

 private:
  // Lets go what a stripe removes.
  class OfStripe : public StripeTier {
   public:
    OfStripe(RowTier* tier, int bin)
        : hot(tier->owner_.arena, tier->memory_.get(), bin), tier_(tier), bin_(bin) {}
    void Drop(uint32_t number) override { tier_->Drop(bin_, number); }
    void Clear() override { tier_->Clear(bin_); }

    HotRows hot;

   private:
    RowTier* const tier_;
    const int bin_;
  };

  RowHeader* RowAt(int bin, uint32_t number) const;
  // Takes a slot, for which another row may go to disk. If that is full, evicts a row, or returns
  // kNoSlot if it may not.
  uint32_t TakeSlot(int bin, bool may_evict);
  bool Spill(int bin, uint32_t slot);
  // Spills a stripe's victim, or if the disk is full a row that needs no place there. Returns
  // false, and leaves the victim in its queue, if there is none.
  bool LetGo(int bin, uint32_t victim);
  // Kills the record of a row in memory, if it has one.
  void ForgetRecord(int bin, uint32_t slot);
  // Frees a stripe's last chunk, whose rows push out colder ones, but never its only one.
  Freed Shrink(int bin);
  int64_t ChunkBytes() const override {
    return owner_.arena->num_chunks() * owner_.arena->chunk_bytes();
  }
  Freed FreeChunk(uint64_t random, int locked) override;
  // Reads a row on disk; null if that fails.
  const char* Payload(int bin, const RowHeader& row, const Fetched& fetched, int64_t key,
                      std::vector<char>* own);
  // Gives a row on disk a slot with its floats, and keeps its record; returns the slot, as TakeSlot
  // does.
  uint32_t ComeIn(int bin, uint32_t number, const char* payload, bool may_evict);
  void Drop(int bin, uint32_t number);
  void Clear(int bin);
  bool MoveRecord(const SpillLog::OnDisk& record);
  void AddSpilled(int bin, int64_t rows);
  void Fail(const Status& status);
  // Steps since its last update.
  int64_t AgeOf(const RowHeader& row) const {
    return owner_.steps->load(std::memory_order_relaxed) - 1 - int64_t{row.last_step};
  }

  const std::shared_ptr<TierMemory> memory_;
  const Owner owner_;
  SpillLog log_;
  std::vector<std::unique_ptr<OfStripe>> stripes_;
  std::atomic<int64_t> num_spilled_{0}, late_reads_{0}, evicted_{0};
  std::vector<std::atomic<int64_t>> spilled_;  // of each table
  mutable Mutex mutex_;
  std::vector<uint32_t> image_slots_ GUARDED_BY(mutex_);  // without an image
  Status failure_ GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_TIER_H_
