#include "embedps/kernels/store/counter_map.h"

#include <algorithm>
#include <utility>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {
namespace {

constexpr uint32_t kFirstCapacity = 8;
constexpr uint32_t kMaxPageCounters = 512;

uint32_t TickOf(uint32_t step) { return step >> kStepsPerTickBits; }

// Whether a page is full. Linear probing needs a sixth of the entries empty.
bool IsFull(uint32_t used, uint32_t capacity) { return used * 6 >= capacity * 5; }

// The capacity at which `used` counters, and a fifth more, are not full.
uint32_t CapacityFor(uint32_t used) { return std::max(kFirstCapacity, used + used * 7 / 16 + 3); }

}  // namespace

CounterMap::CounterMap(uint64_t table_salt, uint32_t expire_steps)
    : salt_(table_salt), expire_ticks_(expire_steps == 0 ? 0 : TickOf(expire_steps - 1) + 1) {}

CounterMap::Entry* CounterMap::Find(const Page& page, uint64_t hash, int64_t id) {
  for (uint32_t at = Home(page, hash); page.entries[at].count != 0;) {
    if (page.entries[at].id == id) return &page.entries[at];
    if (++at == page.capacity) at = 0;
  }
  return nullptr;
}

uint32_t CounterMap::Count(uint64_t hash, int64_t id, uint32_t step) const {
  if (directory_.empty()) return 0;
  const Entry* entry = Find(*PageOf(hash), hash, id);
  return entry == nullptr || Expired(entry->tick, TickOf(step)) ? 0 : entry->count;
}

void CounterMap::Set(uint64_t hash, int64_t id, uint32_t count, uint32_t step) {
  Entry* entry = FindOrAdd(hash, id, TickOf(step));
  entry->count = count;
  entry->tick = std::max(uint32_t{entry->tick}, TickOf(step));  // steps may come out of order
  entry->open = 1;
  PageOf(hash)->touched = true;
}

void CounterMap::Erase(uint64_t hash, int64_t id) {
  Remove(hash, id);
  open_erased_.push_back(id);
}

void CounterMap::Load(uint64_t hash, const CounterRecord& counter) {
  if (counter.count == 0) {
    Remove(hash, counter.id);
    return;
  }
  Entry* entry = FindOrAdd(hash, counter.id, 0);
  entry->count = std::min(counter.count, uint32_t{kMaxMinCount} - 1);
  entry->tick = TickOf(counter.last_step);
}

CounterMap::Entry* CounterMap::FindOrAdd(uint64_t hash, int64_t id, uint32_t now) {
  if (!directory_.empty()) {
    Entry* found = Find(*PageOf(hash), hash, id);
    if (found != nullptr) return found;
  }
  while (directory_.empty() || IsFull(PageOf(hash)->used + 1, PageOf(hash)->capacity)) {
    MakeRoom(hash, now);
  }
  Page* page = PageOf(hash);
  Entry entry{};
  entry.id = id;
  entry.count = 1;
  ++size_;
  return Place(page, entry, hash);
}

bool CounterMap::Remove(uint64_t hash, int64_t id) {
  if (directory_.empty()) return false;
  Page* page = PageOf(hash);
  Entry* found = Find(*page, hash, id);
  if (found == nullptr) return false;
  // Move later entries of the probe sequence back over the gap.
  Entry* entries = page->entries.get();
  const uint32_t capacity = page->capacity;
  const auto distance = [capacity](uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + capacity - from;
  };
  uint32_t gap = static_cast<uint32_t>(found - entries);
  for (uint32_t at = gap + 1 == capacity ? 0 : gap + 1; entries[at].count != 0;
       at = at + 1 == capacity ? 0 : at + 1) {
    const uint32_t home = Home(*page, HashOf(entries[at].id));
    if (distance(home, at) >= distance(gap, at)) {
      entries[gap] = entries[at];
      gap = at;
    }
  }
  entries[gap] = Entry{};
  --page->used;
  --size_;
  return true;
}

CounterMap::Entry* CounterMap::Place(Page* page, const Entry& entry, uint64_t hash) {
  uint32_t at = Home(*page, hash);
  while (page->entries[at].count != 0) {
    if (++at == page->capacity) at = 0;
  }
  page->entries[at] = entry;
  ++page->used;
  return &page->entries[at];
}

std::unique_ptr<CounterMap::Entry[]> CounterMap::Renew(Page* page, uint32_t capacity) {
  auto old = std::move(page->entries);
  page->entries = std::make_unique<Entry[]>(capacity);
  page->capacity = capacity;
  page->used = 0;
  return old;
}

void CounterMap::MakeRoom(uint64_t hash, uint32_t now) {
  if (directory_.empty()) {
    pages_.push_back(std::make_unique<Page>());
    Renew(pages_.back().get(), kFirstCapacity);
    directory_.push_back(pages_.back().get());
    return;
  }
  Page* page = PageOf(hash);
  const uint32_t old_used = page->used, old_capacity = page->capacity;
  const auto is_kept = [&](const Entry& entry) {
    return entry.count != 0 && !Expired(entry.tick, now);
  };
  const auto kept = static_cast<uint32_t>(
      std::count_if(page->entries.get(), page->entries.get() + old_capacity, is_kept));
  size_ -= old_used - kept;
  if (kept < kMaxPageCounters) {
    const auto old = Renew(page, CapacityFor(kept));
    for (uint32_t at = 0; at < old_capacity; ++at) {
      if (is_kept(old[at])) Place(page, old[at], HashOf(old[at].id));
    }
    return;
  }
  // Split the page by the next bit of its ids' hashes.
  const size_t step = size_t{1} << page->depth++;
  pages_.push_back(std::make_unique<Page>());
  Page* other = pages_.back().get();
  other->depth = page->depth;
  other->cut = page->cut;
  other->touched = page->touched;
  const auto moves = [&](const Entry& entry) {
    return is_kept(entry) && (Bits(HashOf(entry.id)) & step) != 0;
  };
  const auto moved = static_cast<uint32_t>(
      std::count_if(page->entries.get(), page->entries.get() + old_capacity, moves));
  const auto old = Renew(page, CapacityFor(kept - moved));
  Renew(other, CapacityFor(moved));
  for (uint32_t at = 0; at < old_capacity; ++at) {
    if (!is_kept(old[at])) continue;
    const uint64_t of_id = HashOf(old[at].id);
    Place((Bits(of_id) & step) != 0 ? other : page, old[at], of_id);
  }
  if (step == directory_.size()) {
    directory_.resize(2 * step);
    std::copy_n(directory_.begin(), step, directory_.begin() + step);
  }
  for (size_t i = (Bits(hash) & (step - 1)) + step; i < directory_.size(); i += 2 * step) {
    directory_[i] = other;
  }
}

bool CounterMap::NextPage(uint32_t number, bool drop_pending, bool all, size_t* at,
                          const Visit& visit) {
  for (; *at < pages_.size(); ++*at) {
    Page& page = *pages_[*at];
    if (page.cut == number) continue;  // it was split from one that this cut has visited
    page.cut = number;
    if (!page.touched && !all) continue;
    page.touched = false;
    for (uint32_t i = 0; i < page.capacity; ++i) {
      Entry& entry = page.entries[i];
      if (entry.count == 0) continue;
      entry.pending = entry.open | (entry.pending & !drop_pending);
      entry.open = 0;
      if (entry.pending) page.touched = true;
      if (entry.pending || all) {
        visit({entry.id, entry.count, uint32_t{entry.tick} << kStepsPerTickBits});
      }
    }
    ++*at;
    return true;
  }
  return false;
}

void CounterMap::TakeErased(bool drop_pending, bool give, const Visit& visit) {
  if (drop_pending) pending_erased_.clear();
  pending_erased_.insert(pending_erased_.end(), open_erased_.begin(), open_erased_.end());
  open_erased_ = {};
  if (!give) return;
  for (const int64_t id : pending_erased_) {
    const uint64_t hash = HashOf(id);
    const Entry* entry = directory_.empty() ? nullptr : Find(*PageOf(hash), hash, id);
    if (entry == nullptr) {
      visit({id, 0, 0});
    } else {  // the id came back since
      visit({id, entry->count, uint32_t{entry->tick} << kStepsPerTickBits});
    }
  }
}

bool CounterMap::CopyPage(size_t* at, const Visit& visit) const {
  if (*at >= pages_.size()) return false;
  const Page& page = *pages_[(*at)++];
  for (uint32_t i = 0; i < page.capacity; ++i) {
    const Entry& entry = page.entries[i];
    if (entry.count == 0) continue;
    visit({entry.id, entry.count, uint32_t{entry.tick} << kStepsPerTickBits});
  }
  return true;
}

void CounterMap::ForgetTouches() {
  for (const auto& page : pages_) {
    if (!page->touched) continue;
    page->touched = false;
    for (uint32_t i = 0; i < page->capacity; ++i) {
      page->entries[i].open = page->entries[i].pending = 0;
    }
  }
  open_erased_ = {};
  pending_erased_ = {};
}

void CounterMap::Clear() {
  directory_ = {};
  std::vector<std::unique_ptr<Page>>().swap(pages_);
  open_erased_ = {};
  pending_erased_ = {};
  size_ = 0;
}

int64_t CounterMap::MemoryBytes() const {
  constexpr size_t kHeapBytes = 16;  // of an allocation
  size_t bytes = directory_.capacity() * sizeof(Page*) +
                 pages_.capacity() * sizeof(std::unique_ptr<Page>) +
                 pages_.size() * (sizeof(Page) + 2 * kHeapBytes) +
                 (open_erased_.capacity() + pending_erased_.capacity()) * sizeof(int64_t);
  for (const auto& page : pages_) bytes += page->capacity * sizeof(Entry);
  return static_cast<int64_t>(bytes);
}

}  // namespace embedps
