#include "embedps/kernels/retrieval/item_index.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "embedps/kernels/retrieval/item_codes.h"
#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

constexpr int64_t kPartBlocks = 512;  // a thread takes so many at a time
constexpr int kFewLanes = 4;          // of a block, which are scored one by one

typedef float Floats __attribute__((vector_size(64), aligned(64), may_alias));

// Computes that of one lane, as `Multiply` does.
EMBEDPS_SIMD float MultiplyLane(const float* __restrict values, const float* __restrict query,
                                int dim) {
  float sum = 0;
  for (int i = 0; i < dim; ++i) sum += query[i] * values[i * kLanes];
  return sum;
}

// Written so that what is not a number is above, too.
EMBEDPS_SIMD bool AnyAbove(const float* __restrict most, float least) {
  int any = 0;
  for (int lane = 0; lane < kLanes; ++lane) any |= !(most[lane] < least);
  return any != 0;
}

// Gives the lanes whose scores may be `least` or more.
uint64_t LanesAbove(const BlockCodes& codes, const CodedQuery& query, const BlockCodes& next,
                    float least) {
  alignas(64) float most[kLanes];
  BoundScores(codes, query, next, most);
  if (!AnyAbove(most, least)) return 0;
  uint64_t lanes = 0;
  for (int lane = 0; lane < kLanes; ++lane) lanes |= uint64_t{!(most[lane] < least)} << lane;
  return lanes;
}

void Raise(float value, std::atomic<float>* to) {
  float before = to->load(std::memory_order_relaxed);
  while (before < value && !to->compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

struct FreeMemory {
  void operator()(float* memory) const { std::free(memory); }
};

// Computes the dot products of a query with a block's items, values [dim, kLanes].
EMBEDPS_SIMD void Multiply(const float* __restrict values, const float* __restrict query, int dim,
                           float* __restrict scores) {
  Floats a = {}, b = {}, c = {}, d = {};
  for (int i = 0; i < dim; ++i) {
    const Floats* row = reinterpret_cast<const Floats*>(values + i * kLanes);
    a += query[i] * row[0];
    b += query[i] * row[1];
    c += query[i] * row[2];
    d += query[i] * row[3];
  }
  Floats* to = reinterpret_cast<Floats*>(scores);
  to[0] = a;
  to[1] = b;
  to[2] = c;
  to[3] = d;
}

}  // namespace

struct ItemIndex::Block {
  // In one piece: values, scales, errors and codes.
  static size_t Floats(int dim) { return static_cast<size_t>(kLanes) * (dim + 2); }
  static size_t Bytes(int dim) { return sizeof(float) * Floats(dim) + kLanes * dim; }

  explicit Block(int dim) : Block(Allocate(dim), dim) { std::memset(memory.get(), 0, Bytes(dim)); }
  Block(const Block& other, int dim) : Block(Allocate(dim), dim) {
    live = other.live;
    std::copy(other.ids, other.ids + kLanes, ids);
    std::memcpy(memory.get(), other.memory.get(), Bytes(dim));
  }

  void Set(int lane, int64_t id, const float* vector, int dim) {
    live |= uint64_t{1} << lane;
    ids[lane] = id;
    for (int i = 0; i < dim; ++i) values[i * kLanes + lane] = vector[i];
    EncodeVector(vector, dim, lane, codes);
  }

  static float* Allocate(int dim) {
    float* memory = static_cast<float*>(std::aligned_alloc(64, Bytes(dim)));
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  Block(float* allocated, int dim) : values(allocated), memory(allocated) {
    codes.scales = values + kLanes * dim;
    codes.errors = codes.scales + kLanes;
    codes.numbers = reinterpret_cast<int8_t*>(values + Floats(dim));
  }

  uint64_t live = 0;  // a bit per lane
  int64_t ids[kLanes] = {};
  float* values;  // [dim, kLanes]
  BlockCodes codes;
  std::unique_ptr<float[], FreeMemory> memory;
};

// Lanes of a block.
struct ItemIndex::BlockMask {
  int64_t block;
  uint64_t lanes;
};

// The best items of a query so far.
class ItemIndex::Best {
 public:
  struct Item {
    float score;
    int64_t id;
    bool operator<(const Item& other) const {  // is better
      return score > other.score || (score == other.score && id < other.id);
    }
  };

  Best(int k, const std::vector<int64_t>* seen) : k_(k), seen_(seen) {}

  // Below it no score is of use.
  float least() const { return least_; }

  void Add(const Item& item) {
    const bool is_full = static_cast<int>(heap_.size()) == k_;
    if (is_full && !(item < heap_.front())) return;
    if (std::binary_search(seen_->begin(), seen_->end(), item.id)) return;
    if (is_full) {
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = item;
    } else {
      heap_.push_back(item);
    }
    std::push_heap(heap_.begin(), heap_.end());
    if (static_cast<int>(heap_.size()) == k_) least_ = heap_.front().score;
  }

  void AddAll(const Best& other) {
    for (const Item& item : other.heap_) Add(item);
  }

  void Write(float* scores, int64_t* found) {
    std::sort(heap_.begin(), heap_.end());
    for (int i = 0; i < k_; ++i) {
      const bool is_item = i < static_cast<int>(heap_.size());
      scores[i] = is_item ? heap_[i].score : kNoScore;
      found[i] = is_item ? heap_[i].id : kNoItem;
    }
  }

 private:
  int k_;
  const std::vector<int64_t>* seen_;  // sorted
  std::vector<Item> heap_;            // the worst is first
  float least_ = -std::numeric_limits<float>::infinity();
};

// Makes an index of another one.
class ItemIndex::Change {
 public:
  explicit Change(const ItemIndex& before)
      : made_(std::make_shared<ItemIndex>(before)), own_(before.blocks_.size(), nullptr) {}

  void Remove(const int64_t* removed, int64_t num_removed) {
    std::vector<int64_t> ids(removed, removed + num_removed);
    std::sort(ids.begin(), ids.end());
    std::vector<Place>& places = made_->places_;
    const auto is_gone = [&](const Place& place) {
      if (!std::binary_search(ids.begin(), ids.end(), place.id)) return false;
      Own(place.slot / kLanes)->live &= ~(uint64_t{1} << (place.slot % kLanes));
      made_->free_.push_back(place.slot);
      return true;
    };
    if (!ids.empty()) {
      places.erase(std::remove_if(places.begin(), places.end(), is_gone), places.end());
    }
  }

  void Put(const int64_t* ids, int64_t num_ids, const float* vectors) {
    std::vector<std::pair<int64_t, int64_t>> order(num_ids);  // id, row
    for (int64_t i = 0; i < num_ids; ++i) order[i] = {ids[i], i};
    std::sort(order.begin(), order.end());
    std::vector<std::pair<int32_t, int64_t>> writes;  // slot, row
    writes.reserve(num_ids);
    std::vector<Place> added;
    for (int64_t i = 0; i < num_ids; ++i) {
      if (i + 1 < num_ids && order[i + 1].first == order[i].first) continue;
      int32_t slot = made_->SlotOf(order[i].first);
      if (slot < 0) {
        slot = NewSlot();
        added.push_back({order[i].first, slot});
      }
      writes.push_back({slot, order[i].second});
    }
    std::sort(writes.begin(), writes.end());  // a block after the other
    const int dim = made_->dim_;
    for (const auto& [slot, row] : writes) {
      Own(slot / kLanes)->Set(slot % kLanes, ids[row], vectors + row * dim, dim);
    }
    if (added.empty()) return;
    std::vector<Place>& places = made_->places_;
    const auto middle = places.insert(places.end(), added.begin(), added.end());
    std::inplace_merge(places.begin(), middle, places.end(),
                       [](const Place& a, const Place& b) { return a.id < b.id; });
  }

  std::shared_ptr<const ItemIndex> made() const { return made_; }

 private:
  int32_t NewSlot() {
    std::vector<int32_t>& free = made_->free_;
    if (free.empty()) {
      const int32_t first = static_cast<int32_t>(made_->blocks_.size() * kLanes);
      auto block = std::make_shared<Block>(made_->dim_);
      own_.push_back(block.get());
      made_->blocks_.push_back(std::move(block));
      for (int lane = kLanes - 1; lane >= 0; --lane) free.push_back(first + lane);
    }
    const int32_t slot = free.back();
    free.pop_back();
    return slot;
  }

  // Gives a block that may be written: its first write copies it.
  Block* Own(int64_t block) {
    if (own_[block] == nullptr) {
      auto copy = std::make_shared<Block>(*made_->blocks_[block], made_->dim_);
      own_[block] = copy.get();
      made_->blocks_[block] = std::move(copy);
    }
    return own_[block];
  }

  std::shared_ptr<ItemIndex> made_;
  std::vector<Block*> own_;  // of this change; null if shared
};

std::shared_ptr<const ItemIndex> ItemIndex::Changed(const int64_t* ids, int64_t num_ids,
                                                    const float* vectors, const int64_t* removed,
                                                    int64_t num_removed) const {
  Change change(*this);
  change.Remove(removed, num_removed);
  change.Put(ids, num_ids, vectors);
  return change.made();
}

int32_t ItemIndex::SlotOf(int64_t id) const {
  const auto found = std::lower_bound(places_.begin(), places_.end(), id,
                                      [](const Place& place, int64_t id) { return place.id < id; });
  return found != places_.end() && found->id == id ? found->slot : -1;
}

std::vector<ItemIndex::BlockMask> ItemIndex::AllowedIn(const ItemFilter& filter) const {
  std::vector<int32_t> slots;
  for (int64_t i = 0; i < filter.num_allowed; ++i) {
    const int32_t slot = SlotOf(filter.allowed[i]);
    if (slot >= 0) slots.push_back(slot);
  }
  std::sort(slots.begin(), slots.end());
  std::vector<BlockMask> masks;
  for (const int32_t slot : slots) {
    const int64_t block = slot / kLanes;
    if (masks.empty() || masks.back().block != block) masks.push_back({block, 0});
    masks.back().lanes |= uint64_t{1} << (slot % kLanes);
  }
  return masks;
}

void ItemIndex::ScoreBlock(int64_t block, uint64_t lanes, const float* query, Best* best) const {
  const Block& from = *blocks_[block];
  alignas(64) float scores[kLanes];
  if (__builtin_popcountll(lanes) <= kFewLanes) {
    for (uint64_t left = lanes; left != 0; left &= left - 1) {
      const int lane = __builtin_ctzll(left);
      scores[lane] = MultiplyLane(from.values + lane, query, dim_);
    }
  } else {
    Multiply(from.values, query, dim_, scores);
  }
  for (uint64_t left = lanes; left != 0; left &= left - 1) {
    const int lane = __builtin_ctzll(left);
    if (scores[lane] >= best->least()) best->Add({scores[lane], from.ids[lane]});
  }
}

void ItemIndex::Search(const float* queries, int64_t num_queries, int k,
                       const std::vector<ItemFilter>& filters, const ParallelFor& parallel,
                       float* scores, int64_t* found) const {
  std::vector<std::vector<int64_t>> seen(num_queries);
  std::vector<Best> best;
  std::vector<int64_t> unlimited;  // queries that may find all items
  best.reserve(num_queries);
  for (int64_t q = 0; q < num_queries; ++q) {
    const ItemFilter& filter = filters[q];
    seen[q].assign(filter.seen, filter.seen + filter.num_seen);
    std::sort(seen[q].begin(), seen[q].end());
    best.emplace_back(k, &seen[q]);
    if (!filter.is_limited) {
      unlimited.push_back(q);
      continue;
    }
    for (const BlockMask& mask : AllowedIn(filter)) {
      const uint64_t lanes = mask.lanes & blocks_[mask.block]->live;
      ScoreBlock(mask.block, lanes, queries + q * dim_, &best[q]);
    }
  }
  const int64_t num_blocks = static_cast<int64_t>(blocks_.size());
  const int64_t num_parts = (num_blocks + kPartBlocks - 1) / kPartBlocks;
  const int64_t cost = kPartBlocks * dim_ * 8 * static_cast<int64_t>(unlimited.size());
  std::vector<CodedQuery> coded;
  for (const int64_t q : unlimited) coded.emplace_back(queries + q * dim_, dim_);
  // Of each query a score that k items have at least, as all threads know it.
  std::vector<std::atomic<float>> least(unlimited.size());
  for (auto& each : least) each = -std::numeric_limits<float>::infinity();
  Mutex mutex;  // guards `best`
  if (!unlimited.empty()) {
    parallel(num_parts, cost, [&](int64_t first, int64_t last) {
      std::vector<Best> ours;
      ours.reserve(unlimited.size());
      for (const int64_t q : unlimited) ours.emplace_back(k, &seen[q]);
      const int64_t end = std::min(last * kPartBlocks, num_blocks);
      for (int64_t block = first * kPartBlocks; block < end; ++block) {
        const Block& from = *blocks_[block];
        const BlockCodes& next = blocks_[std::min(block + 1, end - 1)]->codes;
        for (size_t i = 0; i < unlimited.size(); ++i) {
          const float known = least[i].load(std::memory_order_relaxed);
          const uint64_t lanes = from.live & LanesAbove(from.codes, coded[i], next, known);
          if (lanes == 0) continue;
          ScoreBlock(block, lanes, coded[i].values, &ours[i]);
          Raise(ours[i].least(), &least[i]);
        }
      }
      const MutexLock lock(&mutex);
      for (size_t i = 0; i < unlimited.size(); ++i) best[unlimited[i]].AddAll(ours[i]);
    });
  }
  for (int64_t q = 0; q < num_queries; ++q) best[q].Write(scores + q * k, found + q * k);
}

void ItemIndex::Read(const int64_t* ids, int64_t num_ids, float* vectors) const {
  for (int64_t i = 0; i < num_ids; ++i) {
    float* to = vectors + i * dim_;
    const int32_t slot = SlotOf(ids[i]);
    if (slot < 0) {
      std::fill(to, to + dim_, 0.0f);
      continue;
    }
    const float* from = blocks_[slot / kLanes]->values + slot % kLanes;
    for (int d = 0; d < dim_; ++d) to[d] = from[d * kLanes];
  }
}

int64_t ItemIndex::num_bytes() const {
  const int64_t per_block = sizeof(Block) + Block::Bytes(dim_) + sizeof(blocks_[0]);
  return static_cast<int64_t>(blocks_.size()) * per_block +
         static_cast<int64_t>(places_.capacity() * sizeof(Place)) +
         static_cast<int64_t>(free_.capacity() * sizeof(int32_t));
}

}  // namespace embedps
