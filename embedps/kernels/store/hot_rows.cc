#include "embedps/kernels/store/hot_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace embedps {
namespace {

constexpr uint32_t kGain = 8;  // slots for a row that comes back too soon

}  // namespace

using Queue = BodyArena::Queue;

uint32_t HotRows::TakeFree() {
  if (free_.empty()) {
    const bool is_first = chunks_.empty();
    if (is_first) {
      memory_->MustTake(ChargedBytes());
    } else if (!memory_->Take(ChargedBytes())) {
      return BodyArena::kNoSlot;
    }
    const uint32_t first = arena_->NewChunk(holder_);
    if (first == BodyArena::kNoSlot) {
      memory_->Release(ChargedBytes());
      return first;
    }
    chunks_.push_back(first);
    for (uint32_t i = arena_->chunk_slots(); i-- > 0;) free_.push_back(first + i);
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

uint32_t HotRows::TakeOther(uint32_t first, uint32_t end) {
  for (size_t i = free_.size(); i-- > 0;) {
    const uint32_t slot = free_[i];
    if (slot >= first && slot < end) continue;
    free_.erase(free_.begin() + static_cast<int64_t>(i));
    return slot;
  }
  return BodyArena::kNoSlot;
}

uint32_t HotRows::Victim() {
  while (true) {
    if (!small_.empty() && (num_small_ * kSmallParts >= num_rows() || num_main_ == 0)) {
      const uint32_t slot = small_.front();
      small_.pop_front();
      BodyArena::Slot* const at = arena_->At(slot);
      at->ringed = false;
      if (at->queue != Queue::kSmall) continue;
      if (EndWait(slot)) {
        Keep(slot);
        continue;
      }
      if (at->uses == 0) return slot;
      at->uses = 0;
      at->queue = Queue::kMain;
      --num_small_;
      ++num_main_;
      continue;
    }
    if (num_main_ == 0) return BodyArena::kNoSlot;
    if (hand_slot_ == arena_->chunk_slots()) {
      hand_slot_ = 0;
      ++hand_chunk_;
    }
    if (hand_chunk_ >= chunks_.size()) hand_chunk_ = 0;
    const uint32_t slot = chunks_[hand_chunk_] + hand_slot_++;
    BodyArena::Slot* const at = arena_->At(slot);
    if (at->queue != Queue::kMain) continue;
    if (!EndWait(slot) && at->uses-- == 0) {
      at->uses = 0;
      return slot;
    }
  }
}

bool HotRows::NeedsChunk() {
  if (++missed_ * kGain < arena_->chunk_slots() || !free_.empty()) return false;
  missed_ = 0;
  return true;
}

void HotRows::Keep(uint32_t slot) {
  BodyArena::Slot* const at = arena_->At(slot);
  if (at->queue != Queue::kSmall || at->ringed) return;
  at->ringed = true;
  small_.push_back(slot);
}

void HotRows::Add(uint32_t slot, uint32_t row, bool is_main) {
  BodyArena::Slot* const at = arena_->At(slot);
  at->row = row;
  at->uses = 0;
  at->awaited = Awaited::kNothing;
  at->queue = is_main ? Queue::kMain : Queue::kSmall;
  ++(is_main ? num_main_ : num_small_);
  Keep(slot);
}

uint32_t HotRows::AnyClean() const {
  if (num_clean_ == 0) return BodyArena::kNoSlot;
  for (const uint32_t first : chunks_) {
    for (uint32_t slot = first; slot < first + arena_->chunk_slots(); ++slot) {
      if (arena_->At(slot)->record != 0) return slot;
    }
  }
  return BodyArena::kNoSlot;
}

void HotRows::Free(uint32_t slot) {
  SetRecord(slot, 0);
  BodyArena::Slot* const at = arena_->At(slot);
  if (at->queue != Queue::kFree) --(at->queue == Queue::kMain ? num_main_ : num_small_);
  (void)EndWait(slot);
  at->queue = Queue::kFree;
  free_.push_back(slot);
}

void HotRows::Move(uint32_t from, uint32_t to) {
  BodyArena::Slot* const source = arena_->At(from);
  BodyArena::Slot* const target = arena_->At(to);
  target->row = source->row;
  target->uses = source->uses;
  target->awaited = source->awaited;
  source->awaited = Awaited::kNothing;
  target->queue = source->queue;
  target->record = std::exchange(source->record, 0);
  std::memcpy(target->floats(), source->floats(), arena_->body_bytes());
  source->queue = Queue::kFree;
  free_.push_back(from);
  Keep(to);
}

void HotRows::DropLastChunk() {
  const uint32_t first = chunks_.back();
  const auto is_of_chunk = [&](uint32_t slot) {
    return slot >= first && slot < first + arena_->chunk_slots();
  };
  free_.erase(std::remove_if(free_.begin(), free_.end(), is_of_chunk), free_.end());
  small_.erase(std::remove_if(small_.begin(), small_.end(), is_of_chunk), small_.end());
  chunks_.pop_back();
  arena_->FreeChunk(first);
  memory_->Release(ChargedBytes());
}

void HotRows::Clear() {
  for (const uint32_t first : chunks_) arena_->FreeChunk(first);
  memory_->Release(MemoryBytes());
  chunks_.clear();
  free_.clear();
  small_.clear();
  num_small_ = num_main_ = num_awaited_ = num_clean_ = 0;
  hand_chunk_ = hand_slot_ = 0;
  spilled = 0;
  missed_ = 0;
}

}  // namespace embedps
