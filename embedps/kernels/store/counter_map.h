// Counts the examples that show ids without a row, for one stripe of one table.
#ifndef EMBEDPS_KERNELS_STORE_COUNTER_MAP_H_
#define EMBEDPS_KERNELS_STORE_COUNTER_MAP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

inline constexpr int kStepsPerTickBits = 10;  // counters remember their last step in ticks

// A counter as checkpoints hold it. A count of 0 means that there is none.
struct CounterRecord {
  int64_t id;
  uint32_t count;
  uint32_t last_step;  // of the last example, rounded down to a tick
};

// The caller holds the stripe's lock during each call. Takes at most 17.8 bytes per counter once a
// stripe has some hundred: entries of 12 bytes, of which 0.69 to 0.83 are in use.
//
// The counters lie in pages of at most 512, which a directory finds by the hash's bits after the
// stripe's (extendible hashing, as in stripe.h). A page grows by a fifth and is split alone, so
// one call moves at most 512 counters.
class CounterMap {
 public:
  // `expire_steps` is the time after which an id that no example shows is forgotten, rounded up to
  // ticks; 0 is never.
  CounterMap(uint64_t table_salt, uint32_t expire_steps);

  // Two functions prefetch an id's counter. Each needs the result of the one before, so the caller
  // calls it some ids later.
  [[gnu::always_inline]] void PrefetchPage(uint64_t hash) const {
    if (!directory_.empty()) __builtin_prefetch(PageOf(hash));
  }
  [[gnu::always_inline]] void PrefetchEntry(uint64_t hash) const {
    if (directory_.empty()) return;
    const Page& page = *PageOf(hash);
    const char* entry = reinterpret_cast<const char*>(&page.entries[Home(page, hash)]);
    __builtin_prefetch(entry, 1);
    __builtin_prefetch(entry + 64, 1);  // a probe sequence is some entries long
  }

  // Returns an id's count as of a step. A counter that expired counts 0.
  uint32_t Count(uint64_t hash, int64_t id, uint32_t step) const;

  // Sets an id's count, at least 1, and lists it for the next cut. If its page is full, forgets the
  // page's counters that expired by then.
  void Set(uint64_t hash, int64_t id, uint32_t count, uint32_t step);

  // Removes an id's counter and lists the removal for the next cut, whether or not it was there.
  void Erase(uint64_t hash, int64_t id);

  // As Set and Erase, but the next cut does not list it.
  void Load(uint64_t hash, const CounterRecord& counter);

  // A cut is a sequence of calls, between which the caller may release the lock: NextPage until it
  // returns false, then TakeErased. `number` must differ from that of the cut before. Each gives
  // `visit` what the next delta must hold (or, with `all`, all counters): changes since the last
  // cut, and the changes of that cut unless `drop_pending`. So a cut that was not committed is
  // given again. `*at` starts as 0.
  using Visit = std::function<void(const CounterRecord&)>;
  bool NextPage(uint32_t number, bool drop_pending, bool all, size_t* at, const Visit& visit);
  // Gives the ids that were erased since, with the count that they have by now.
  void TakeErased(bool drop_pending, bool give, const Visit& visit);

  // Gives the counters of the next page and changes nothing. Returns false at the end. Counters of
  // a page that is split between two calls may be given twice.
  bool CopyPage(size_t* at, const Visit& visit) const;

  // Forgets what was listed for cuts.
  void ForgetTouches();

  void Clear();
  int64_t size() const { return size_; }
  int64_t MemoryBytes() const;

 private:
  struct __attribute__((packed, aligned(4))) Entry {
    int64_t id;
    uint32_t tick : 22;
    uint32_t count : 8;    // 0 if the entry is empty
    uint32_t open : 1;     // changed since the last cut
    uint32_t pending : 1;  // given by the last cut, until it is known to be committed
  };
  static_assert(sizeof(Entry) == 12);

  struct Page {
    std::unique_ptr<Entry[]> entries;
    uint32_t capacity = 0;
    uint32_t used = 0;
    uint32_t depth = 0;
    uint32_t cut = 0;      // the number of the last cut that visited it
    bool touched = false;  // some entry is open or pending
  };

  uint64_t HashOf(int64_t id) const { return RowHash(salt_, id); }
  static size_t Bits(uint64_t hash) { return hash >> kStripeBits; }
  Page* PageOf(uint64_t hash) const { return directory_[Bits(hash) & (directory_.size() - 1)]; }
  static uint32_t Home(const Page& page, uint64_t hash) {
    // A shard's hashes share their highest bits, and a page's the lowest. A product mixes them.
    return static_cast<uint32_t>((((hash * kSplitMixIncrement) >> 32) * page.capacity) >> 32);
  }
  static Entry* Find(const Page& page, uint64_t hash, int64_t id);
  bool Expired(uint32_t tick, uint32_t now) const {
    return expire_ticks_ > 0 && now > tick && now - tick > expire_ticks_;
  }
  Entry* FindOrAdd(uint64_t hash, int64_t id, uint32_t now);
  bool Remove(uint64_t hash, int64_t id);
  void MakeRoom(uint64_t hash, uint32_t now);
  static Entry* Place(Page* page, const Entry& entry, uint64_t hash);
  // Gives a page empty entries and returns the ones before.
  static std::unique_ptr<Entry[]> Renew(Page* page, uint32_t capacity);

  const uint64_t salt_;
  const uint32_t expire_ticks_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<Page*> directory_;  // 2^n entries
  std::vector<int64_t> open_erased_, pending_erased_;
  int64_t size_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_COUNTER_MAP_H_
