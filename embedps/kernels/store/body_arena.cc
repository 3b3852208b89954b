#include "embedps/kernels/store/body_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace embedps {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kWasteParts = 16;  // a chunk's end that no slot uses is at most one of these parts

size_t SlotBytes(size_t body_bytes) { return sizeof(BodyArena::Slot) + (body_bytes + 3) / 4 * 4; }

int BitsFor(uint32_t count) {
  int bits = 0;
  while ((1u << bits) < count) ++bits;
  return bits;
}

}  // namespace

int64_t BodyArena::ChunkBytes(size_t body_bytes) {
  const size_t slot = SlotBytes(body_bytes);
  size_t bytes = kPageBytes;
  while (bytes / slot < kLeastChunkSlots || bytes % slot > bytes / kWasteParts) bytes += kPageBytes;
  return static_cast<int64_t>(bytes);
}

BodyArena::BodyArena(size_t body_bytes, int64_t max_bytes, uint32_t chunk_slots)
    : body_bytes_(body_bytes),
      slot_bytes_(SlotBytes(body_bytes)),
      chunk_bytes_(ChunkBytes(body_bytes)),
      chunk_slots_(std::min(chunk_slots == 0 ? UINT32_MAX : chunk_slots,
                            static_cast<uint32_t>(chunk_bytes_ / slot_bytes_))),
      slot_bits_(BitsFor(chunk_slots_)),
      // The last chunk that a number could name is left out: kNoSlot is in it.
      max_chunks_(static_cast<uint32_t>(
          std::min<int64_t>((max_bytes + kScratch) / static_cast<int64_t>(chunk_bytes_) + 1,
                            (int64_t{1} << (30 - slot_bits_)) - 1))) {
  void* mapped = mmap(nullptr, max_chunks_ * chunk_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(mapped);
  // Pages of it that no chunk needs are never touched.
  holders_.reset(static_cast<std::atomic<int32_t>*>(calloc(max_chunks_, sizeof(int32_t))));
  if (holders_ == nullptr) throw std::bad_alloc();
  // A lookup touches a page of floats per row.
  madvise(base_, max_chunks_ * chunk_bytes_, MADV_HUGEPAGE);
}

BodyArena::~BodyArena() { munmap(base_, max_chunks_ * chunk_bytes_); }

uint32_t BodyArena::NewChunk(int holder) {
  const MutexLock lock(&mutex_);
  uint32_t chunk;
  if (auto& freed = kept_.empty() ? freed_ : kept_; !freed.empty()) {
    chunk = freed.back();
    freed.pop_back();
  } else {
    chunk = num_chunks_.load(std::memory_order_relaxed);
    if (chunk == max_chunks_) return kNoSlot;
    num_chunks_.store(chunk + 1, std::memory_order_relaxed);
  }
  holders_.get()[chunk].store(holder, std::memory_order_relaxed);
  return chunk << slot_bits_;  // new pages are zeros: every slot is kFree
}

void BodyArena::FreeChunk(uint32_t first) {
  const uint32_t chunk = first >> slot_bits_;
  holders_.get()[chunk].store(kNobody, std::memory_order_relaxed);
  {
    const MutexLock lock(&mutex_);
    if (kept_.size() * chunk_bytes_ < kKeptBytes) {
      for (uint32_t i = 0; i < chunk_slots_; ++i) *At(first + i) = Slot{};
      kept_.push_back(chunk);
      return;
    }
  }
  if (!gives_back_.exchange(true)) {
    // The system would make huge pages again of those that go back.
    madvise(base_, max_chunks_ * chunk_bytes_, MADV_NOHUGEPAGE);
  }
  madvise(base_ + chunk * chunk_bytes_, chunk_bytes_, MADV_DONTNEED);
  const MutexLock lock(&mutex_);
  freed_.push_back(chunk);
}

}  // namespace embedps
