// Counts the examples that show ids without a row, for one stripe of one table.
#ifndef EMBEDPS_KERNELS_STORE_COUNTER_MAP_H_
#define EMBEDPS_KERNELS_STORE_COUNTER_MAP_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/runtime/place_hash.h"
#include "embedps/kernels/store/server_memory.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

inline constexpr int kStepsPerTickBits = 10;  // counters remember their last step in ticks

// The hashes of an id of a table.
struct IdHashes {
  uint64_t row;    // RowHash
  uint64_t place;  // PlaceHash of it, which is Stripe::HashOf
};

inline IdHashes HashesOf(uint64_t table_salt, int64_t id) {
  const uint64_t row = RowHash(table_salt, id);
  return {row, PlaceHash(row)};
}

// A counter as checkpoints hold it. A count of 0 means that there is none.
struct CounterRecord {
  int64_t id;
  uint32_t count;
  uint32_t last_step;  // of the last example, rounded down to a tick
};

// The bytes of a table's maps and their first pages. These have a place under any limit.
inline constexpr int64_t kLeastCounterBytes = kStripes * int64_t{512};

// The memory of one table's counters, over its stripes. The server's limit is charged
// kLeastCounterBytes from the beginning.
class CounterBudget {
 public:
  explicit CounterBudget(int64_t most_bytes, ServerMemory* server_memory = nullptr)
      : most_bytes_(most_bytes), server_memory_(server_memory) {
    if (server_memory_ != nullptr) server_memory_->TakeForCounters(kLeastCounterBytes);
  }
  ~CounterBudget() {
    if (server_memory_ != nullptr) server_memory_->TakeForCounters(-kLeastCounterBytes);
  }
  CounterBudget(const CounterBudget&) = delete;
  CounterBudget& operator=(const CounterBudget&) = delete;

  // What limits count: malloc leaves up to a sixteenth unused between pages that grow and split.
  static int64_t WithHeap(int64_t bytes) { return bytes + bytes / 16; }

  int64_t most_bytes() const { return most_bytes_; }
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  bool HasRoom(int64_t more) const {
    const int64_t now = bytes();
    return (most_bytes_ == 0 || WithHeap(now + more) <= most_bytes_) &&
           (server_memory_ == nullptr ||
            server_memory_->HasRoomForCounters(ServerBytes(now + more) - ServerBytes(now)));
  }

  // Charges bytes that HasRoom found, or a first page; releases less than 0.
  void Charge(int64_t more) {
    const int64_t before = bytes_.fetch_add(more, std::memory_order_relaxed);
    if (server_memory_ == nullptr) return;
    server_memory_->TakeForCounters(ServerBytes(before + more) - ServerBytes(before));
  }

 private:
  static int64_t ServerBytes(int64_t bytes) {
    return std::max(WithHeap(bytes), kLeastCounterBytes);
  }

  const int64_t most_bytes_;           // 0 is no limit
  ServerMemory* const server_memory_;  // null if the server has no limit
  std::atomic<int64_t> bytes_{0};
};

// The caller holds the stripe's lock during each call. Takes at most 17.8 bytes per counter once a
// stripe has some hundred: entries of 12 bytes, of which 0.69 to 0.83 are in use.
//
// The counters lie in pages of at most 512, which a directory finds by the bits of RowHash after
// the stripe's (extendible hashing, as in stripe.h). A page grows by a fifth and is split alone, so
// one call moves at most 512 counters. A saved counter that is removed keeps its entry until a cut
// with the removal is committed and the page is full.
//
// Which counters a page forgets at a limit is the same in each run, so its ids are chosen by a
// public hash. Whoever chooses ids to share its bits gets one page of many counters, as the
// directory has at most 16 entries per page. Within a page the place is by PlaceHash, so such a
// page takes as much memory and time per counter as others, but one call may move all of them.
class CounterMap {
 public:
  // `expire_steps` is the time after which an id that no example shows is forgotten, rounded up to
  // ticks; 0 is never. At the limit of `budget`, which outlives the map, a full page forgets the
  // eighth of its counters that no example has shown for longest; of these, the smallest counts.
  CounterMap(uint64_t table_salt, uint32_t expire_steps, CounterBudget* budget);
  ~CounterMap() { Charge(-bytes_); }
  CounterMap(const CounterMap&) = delete;
  CounterMap& operator=(const CounterMap&) = delete;

  // Three functions prefetch an id's counter. Each needs the result of the one before, so the
  // caller calls it some ids later.
  [[gnu::always_inline]] void PrefetchDirectory(uint64_t row_hash) const {
    if (!directory_.empty())
      __builtin_prefetch(&directory_[Bits(row_hash) & (directory_.size() - 1)]);
  }
  [[gnu::always_inline]] void PrefetchPage(uint64_t row_hash) const {
    if (!directory_.empty()) __builtin_prefetch(PageOf(row_hash));
  }
  [[gnu::always_inline]] void PrefetchEntry(IdHashes hashes) const {
    if (directory_.empty()) return;
    const Page& page = *PageOf(hashes.row);
    const char* entry = reinterpret_cast<const char*>(&page.entries[Home(page, hashes.place)]);
    // A probe sequence is some entries long.
    for (int line = 0; line < 4; ++line) __builtin_prefetch(entry + 64 * line, 1);
  }

  // Returns an id's count as of a step. A counter that expired counts 0.
  uint32_t Count(IdHashes hashes, int64_t id, uint32_t step) const;

  // Returns whether an id's count and `examples` more, at least 1, make `min_count`. If not, they
  // are its count from now on, and the next cut lists it. If its page is full, forgets the page's
  // counters that expired by then.
  bool Show(IdHashes hashes, int64_t id, uint32_t examples, uint32_t min_count, uint32_t step);

  // Removes an id's counter. The next cut lists the removal if a cut or a copy may have given it.
  void Erase(IdHashes hashes, int64_t id);

  // Loads a saved counter; the next cut does not list it.
  void Load(IdHashes hashes, const CounterRecord& counter);

  // A cut is a sequence of calls until one returns false, between which the caller may release the
  // lock. `number` must differ from that of the cut before. Each gives `visit` what the next delta
  // must hold (or, with `all`, all counters): changes since the last cut, and the changes of that
  // cut unless `drop_pending`. So a cut that was not committed is given again. `*at` starts as 0.
  using Visit = std::function<void(const CounterRecord&)>;
  bool NextPage(uint32_t number, bool drop_pending, bool all, size_t* at, const Visit& visit);

  // Gives the counters of the next page. Returns false at the end. Counters of a page that is split
  // between two calls may be given twice.
  bool CopyPage(size_t* at, const Visit& visit);

  // Forgets what was listed for cuts.
  void ForgetTouches();

  void Clear();
  int64_t size() const { return size_; }
  int64_t MemoryBytes() const { return bytes_; }

 private:
  struct __attribute__((packed, aligned(4))) Entry {
    int64_t id;
    uint32_t tick : 21;    // the last one means it or later
    uint32_t count : 8;    // 0 if the entry is empty, or its counter is removed
    uint32_t saved : 1;    // a cut or a copy may have given it; 0 if the entry is empty
    uint32_t open : 1;     // changed since the last cut
    uint32_t pending : 1;  // given by the last cut, until it is known to be committed
    bool empty() const { return count == 0 && !saved; }
    bool listed() const { return open || pending; }
    CounterRecord record() const {
      return {id, count, count == 0 ? 0 : uint32_t{tick} << kStepsPerTickBits};
    }
  };
  static_assert(sizeof(Entry) == 12);

  struct Page {
    std::unique_ptr<Entry[]> entries;
    uint32_t capacity = 0;
    uint32_t used = 0;  // entries that are not empty
    uint32_t depth = 0;
    uint32_t cut = 0;      // the number of the last cut that visited it
    bool touched = false;  // some entry is open or pending
  };

  static size_t Bits(uint64_t row_hash) { return row_hash >> kStripeBits; }
  Page* PageOf(uint64_t row_hash) const {
    return directory_[Bits(row_hash) & (directory_.size() - 1)];
  }
  static uint32_t Home(const Page& page, uint64_t place_hash) {
    return static_cast<uint32_t>(((place_hash >> 32) * page.capacity) >> 32);
  }
  // Returns an id's entry, or the empty one where its probe sequence ends.
  static Entry* Probe(const Page& page, uint64_t place_hash, int64_t id) {
    for (uint32_t at = Home(page, place_hash);;) {
      Entry* entry = &page.entries[at];
      if (entry->id == id || entry->empty()) return entry;
      if (++at == page.capacity) at = 0;
    }
  }
  bool Expired(uint32_t tick, uint32_t now) const {
    return expire_ticks_ > 0 && now > tick && now - tick > expire_ticks_;
  }
  // Adds an entry for an absent id, with a count of 1: at `end`, where its probe sequence in
  // `*page` ends, if there is room. Both are null if there is no page. Sets `*page` to the entry's
  // page.
  Entry* Add(IdHashes hashes, int64_t id, uint32_t now, Entry* end, Page** page);
  void Remove(Page* page, Entry* found);
  void MakeRoom(uint64_t row_hash, uint32_t now);
  // Returns by how many entries a split would make the directory longer.
  size_t DirectoryGrowth(const Page& page) const {
    return size_t{1} << page.depth == directory_.size() ? directory_.size() : 0;
  }
  // Splits a page whose first `used` entries are those in use.
  void Split(Page* page, uint32_t used, uint64_t row_hash);
  Page* AddPage();
  // Removes the worst `num` of entries. Returns how many are left; they are the first.
  uint32_t Forget(Entry* entries, uint32_t used, uint32_t num);
  void Charge(int64_t more);
  // Places entries into an empty page.
  void Place(const Entry* entries, uint32_t num, Page* page) const;
  // Gives a page empty entries and returns the ones before.
  std::unique_ptr<Entry[]> Renew(Page* page, uint32_t capacity);

  const uint64_t salt_;
  const uint32_t expire_ticks_;
  CounterBudget* const budget_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<Page*> directory_;  // 2^n entries
  int64_t size_ = 0;              // counters, without removed ones
  int64_t bytes_ = 0;
  uint64_t num_forgets_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_COUNTER_MAP_H_
