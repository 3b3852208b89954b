#include "embedps/kernels/store/counter_map.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {
namespace {

constexpr uint32_t kFirstCapacity = 8;
constexpr uint32_t kMaxPageCounters = 512;

constexpr uint32_t kLastTick = (1u << 21) - 1;
constexpr int64_t kHeapBytes = 16;  // of an allocation

uint32_t TickOf(uint32_t step) { return std::min(step >> kStepsPerTickBits, kLastTick); }

// Whether a page is full. Linear probing needs a sixth of the entries empty.
bool IsFull(uint32_t used, uint32_t capacity) { return used * 6 >= capacity * 5; }

// The capacity at which `used` counters, and a fifth more, are not full.
uint32_t CapacityFor(uint32_t used) { return std::max(kFirstCapacity, used + used * 7 / 16 + 3); }

}  // namespace

CounterMap::CounterMap(uint64_t table_salt, uint32_t expire_steps, CounterBudget* budget)
    : salt_(table_salt),
      expire_ticks_(expire_steps == 0 ? 0 : TickOf(expire_steps - 1) + 1),
      budget_(budget) {}

uint32_t CounterMap::Count(IdHashes hashes, int64_t id, uint32_t step) const {
  if (directory_.empty()) return 0;
  const Entry* entry = Probe(*PageOf(hashes.row), hashes.place, id);  // an empty one counts 0
  return Expired(entry->tick, TickOf(step)) ? 0 : entry->count;
}

bool CounterMap::Show(IdHashes hashes, int64_t id, uint32_t examples, uint32_t min_count,
                      uint32_t step) {
  const uint32_t now = TickOf(step);
  Page* page = directory_.empty() ? nullptr : PageOf(hashes.row);
  Entry* entry = page == nullptr ? nullptr : Probe(*page, hashes.place, id);
  const bool is_known = entry != nullptr && !entry->empty();
  uint32_t count = examples;
  if (is_known && !Expired(entry->tick, now)) count += entry->count;
  if (count >= min_count) return true;
  if (!is_known) {
    entry = Add(hashes, id, now, entry, &page);
  } else if (entry->count == 0) {
    ++size_;  // it was removed
    entry->tick = now;
  }
  entry->count = count;
  entry->tick = std::max(uint32_t{entry->tick}, now);  // steps may come out of order
  entry->open = 1;
  page->touched = true;
  return false;
}

void CounterMap::Erase(IdHashes hashes, int64_t id) {
  if (directory_.empty()) return;
  Page* page = PageOf(hashes.row);
  Entry* found = Probe(*page, hashes.place, id);
  if (found->count == 0) return;  // it is empty, or removed
  --size_;
  if (!found->saved) return Remove(page, found);
  found->count = 0;
  found->open = 1;
  page->touched = true;
}

void CounterMap::Load(IdHashes hashes, const CounterRecord& counter) {
  Page* page = directory_.empty() ? nullptr : PageOf(hashes.row);
  Entry* entry = page == nullptr ? nullptr : Probe(*page, hashes.place, counter.id);
  const bool is_known = entry != nullptr && !entry->empty();
  if (counter.count == 0) {
    if (!is_known) return;
    size_ -= entry->count != 0;
    return Remove(page, entry);
  }
  if (!is_known) {
    entry = Add(hashes, counter.id, 0, entry, &page);
  } else {
    size_ += entry->count == 0;
  }
  entry->count = std::min(counter.count, uint32_t{kMaxMinCount} - 1);
  entry->tick = TickOf(counter.last_step);
  entry->saved = 1;
}

CounterMap::Entry* CounterMap::Add(IdHashes hashes, int64_t id, uint32_t now, Entry* end,
                                   Page** page) {
  while (*page == nullptr || IsFull((*page)->used + 1, (*page)->capacity)) {
    MakeRoom(hashes.row, now);
    *page = PageOf(hashes.row);
    end = Probe(**page, hashes.place, id);
  }
  end->id = id;
  end->count = 1;
  end->tick = now;
  ++(*page)->used;
  ++size_;
  return end;
}

void CounterMap::Remove(Page* page, Entry* found) {
  // Move later entries of the probe sequence back over the gap.
  Entry* entries = page->entries.get();
  const uint32_t capacity = page->capacity;
  const auto distance = [capacity](uint32_t from, uint32_t to) {
    return to >= from ? to - from : to + capacity - from;
  };
  uint32_t gap = static_cast<uint32_t>(found - entries);
  for (uint32_t at = gap + 1 == capacity ? 0 : gap + 1; !entries[at].empty();
       at = at + 1 == capacity ? 0 : at + 1) {
    const uint32_t home = Home(*page, HashesOf(salt_, entries[at].id).place);
    if (distance(home, at) >= distance(gap, at)) {
      entries[gap] = entries[at];
      gap = at;
    }
  }
  entries[gap] = Entry{};
  --page->used;
}

void CounterMap::Place(const Entry* entries, uint32_t num, Page* page) const {
  // A counting sort by home. Most probes for an empty place would be a branch predicted wrongly.
  thread_local std::vector<uint32_t> homes, places;
  homes.resize(num);
  places.assign(page->capacity, 0);
  for (uint32_t i = 0; i < num; ++i) {
    homes[i] = Home(*page, HashesOf(salt_, entries[i].id).place);
    ++places[homes[i]];
  }
  uint32_t end = 0;
  for (uint32_t home = 0; home < page->capacity; ++home) {
    const uint32_t first = std::max(home, end);
    end = first + std::exchange(places[home], first);
  }
  Entry* to = page->entries.get();
  for (uint32_t i = 0; i < num; ++i) {
    const uint32_t place = places[homes[i]]++;
    if (place < page->capacity) to[place] = entries[i];
  }
  if (end > page->capacity) {  // the last ones go to the first empty places
    uint32_t at = 0;
    for (uint32_t i = num; i-- > 0;) {
      if (places[homes[i]] <= page->capacity) continue;
      --places[homes[i]];
      while (!to[at].empty()) ++at;
      to[at] = entries[i];
    }
  }
  page->used = num;
}

std::unique_ptr<CounterMap::Entry[]> CounterMap::Renew(Page* page, uint32_t capacity) {
  auto old = std::move(page->entries);
  page->entries = std::make_unique<Entry[]>(capacity);
  Charge((int64_t{capacity} - page->capacity) * static_cast<int64_t>(sizeof(Entry)));
  page->capacity = capacity;
  page->used = 0;
  return old;
}

CounterMap::Page* CounterMap::AddPage() {
  pages_.push_back(std::make_unique<Page>());
  Charge(static_cast<int64_t>(sizeof(Page) + sizeof(std::unique_ptr<Page>)) + 2 * kHeapBytes);
  return pages_.back().get();
}

void CounterMap::Charge(int64_t more) {
  bytes_ += more;
  budget_->Charge(more);
}

uint32_t CounterMap::Forget(Entry* entries, uint32_t used, uint32_t num) {
  // Most are equal: a tick is many steps long. Chance chooses among equals, with another draw each
  // time. Otherwise the same places would be emptied again and again, and the others would fill
  // up to long probe sequences.
  const uint64_t draw = Mix64(++num_forgets_);
  std::vector<std::pair<uint64_t, uint32_t>> worths;  // and the entry
  worths.reserve(used);
  for (uint32_t at = 0; at < used; ++at) {
    const Entry& entry = entries[at];
    // Removed counters that a cut still has to give go last: a restore could bring them back.
    const uint64_t worth =
        uint64_t{entry.count == 0} << 29 | uint64_t{entry.tick} << 8 | entry.count;
    const uint64_t chance = Mix64(draw ^ static_cast<uint64_t>(entry.id)) >> 32;
    worths.emplace_back(worth << 32 | chance, at);
  }
  std::nth_element(worths.begin(), worths.begin() + num, worths.end());
  for (uint32_t i = 0; i < num; ++i) {
    Entry& entry = entries[worths[i].second];
    size_ -= entry.count != 0;
    entry = Entry{};
  }
  return static_cast<uint32_t>(
      std::remove_if(entries, entries + used, [](const Entry& entry) { return entry.empty(); }) -
      entries);
}

void CounterMap::MakeRoom(uint64_t row_hash, uint32_t now) {
  if (directory_.empty()) {
    Renew(AddPage(), kFirstCapacity);
    directory_.push_back(pages_.back().get());
    Charge(static_cast<int64_t>(sizeof(Page*)) + kHeapBytes);
    return;
  }
  Page* page = PageOf(row_hash);
  // Moves what stays to the front, without branches: nothing predicts which entries are empty.
  Entry* entries_before = page->entries.get();
  uint32_t kept = 0;
  for (uint32_t at = 0; at < page->capacity; ++at) {
    const Entry entry = entries_before[at];
    const bool counts = entry.count != 0;
    const bool stays = counts ? !Expired(entry.tick, now) : entry.listed();
    entries_before[kept] = entry;
    kept += stays;
    size_ -= counts & !stays;
  }
  const size_t longer = DirectoryGrowth(*page);
  const bool splits = kept >= kMaxPageCounters &&
                      directory_.size() + longer <= kMaxDirectoryShare * (pages_.size() + 1);
  const uint32_t entries = splits ? 2 * CapacityFor(kept / 2) : CapacityFor(kept);
  uint32_t capacity = CapacityFor(kept);
  const int64_t more = (int64_t{entries} - page->capacity) * static_cast<int64_t>(sizeof(Entry)) +
                       (splits ? static_cast<int64_t>(longer * sizeof(Page*)) : 0);
  if (more > 0 && !budget_->HasRoom(more)) {
    capacity = page->capacity;
    if (IsFull(kept + 1, capacity)) kept = Forget(entries_before, kept, capacity / 8 + 1);
  } else if (splits) {
    return Split(page, kept, row_hash);
  }
  const auto old = Renew(page, capacity);
  Place(old.get(), kept, page);
}

void CounterMap::Split(Page* page, uint32_t used, uint64_t row_hash) {
  const size_t step = size_t{1} << page->depth++;
  Page* other = AddPage();
  other->depth = page->depth;
  other->cut = page->cut;
  other->touched = page->touched;
  thread_local std::vector<Entry> moving;
  moving.resize(used);
  uint32_t kept = 0, moved = 0;
  for (uint32_t at = 0; at < used; ++at) {
    const Entry entry = page->entries[at];
    const bool moves = (Bits(RowHash(salt_, entry.id)) & step) != 0;
    page->entries[kept] = moving[moved] = entry;
    kept += !moves;
    moved += moves;
  }
  const auto old = Renew(page, CapacityFor(kept));
  Renew(other, CapacityFor(moved));
  Place(old.get(), kept, page);
  Place(moving.data(), moved, other);
  if (step == directory_.size()) {
    directory_.resize(2 * step);
    std::copy_n(directory_.begin(), step, directory_.begin() + step);
    Charge(static_cast<int64_t>(step * sizeof(Page*)));
  }
  for (size_t i = (Bits(row_hash) & (step - 1)) + step; i < directory_.size(); i += 2 * step) {
    directory_[i] = other;
  }
}

bool CounterMap::NextPage(uint32_t number, bool drop_pending, bool all, size_t* at,
                          const Visit& visit) {
  for (; *at < pages_.size(); ++*at) {
    Page& page = *pages_[*at];
    const Page& next = *pages_[std::min(*at + 1, pages_.size() - 1)];
    if (page.cut == number) continue;  // it was split from one that this cut has visited
    page.cut = number;
    if (!page.touched && !all) continue;
    page.touched = false;
    for (uint32_t i = 0; i < page.capacity; ++i) {
      Entry& entry = page.entries[i];
      if (i < next.capacity) __builtin_prefetch(&next.entries[i], 1);
      if (!all && !entry.listed()) continue;  // most; a listed entry is not empty
      if (entry.empty()) continue;
      entry.pending = entry.open | (entry.pending & !drop_pending);
      entry.open = 0;
      if (entry.pending) page.touched = true;
      if (all ? entry.count == 0 : !entry.pending) continue;
      entry.saved = 1;
      visit(entry.record());
    }
    ++*at;
    return true;
  }
  return false;
}

bool CounterMap::CopyPage(size_t* at, const Visit& visit) {
  if (*at >= pages_.size()) return false;
  const Page& page = *pages_[(*at)++];
  for (uint32_t i = 0; i < page.capacity; ++i) {
    Entry& entry = page.entries[i];
    if (entry.count == 0) continue;
    if (!entry.saved) entry.saved = 1;
    visit(entry.record());
  }
  return true;
}

void CounterMap::ForgetTouches() {
  for (const auto& page : pages_) {
    if (!page->touched) continue;
    page->touched = false;
    for (uint32_t i = 0; i < page->capacity; ++i) {
      Entry& entry = page->entries[i];
      if (entry.listed()) entry.saved = 1;  // whoever forgets the touches knows the counters
      entry.open = entry.pending = 0;
    }
  }
}

void CounterMap::Clear() {
  directory_ = {};
  std::vector<std::unique_ptr<Page>>().swap(pages_);
  size_ = 0;
  Charge(-bytes_);
}

}  // namespace embedps
