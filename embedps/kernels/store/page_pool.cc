#include "embedps/kernels/store/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace embedps {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kFirstRegionBytes = 2
                                     << 20;  // each region is as large as all earlier ones together
constexpr size_t kMaxRegionBytes = 256 << 20;
constexpr size_t kHugeRegionBytes = 8 << 20;  // regions from this size on ask for huge pages
constexpr size_t kHugePagesOfMost = 128;
constexpr size_t kMinAheadBytes = 8 << 20;
constexpr size_t kMaxAheadBytes = 64 << 20;
constexpr size_t kAheadShare =
    16;  // the target is a sixteenth of the used bytes, within these bounds

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Touches pages without changing their content: if the thread is behind, a page may be in use
// already. ThreadSanitizer reports any two unordered writes of a byte as a race.
__attribute__((no_sanitize("thread"))) void TouchPages(char* begin, char* end) {
  for (char* page = begin; page < end; page += kPageBytes) {
    __atomic_fetch_or(page, 0, __ATOMIC_RELAXED);
  }
}

}  // namespace

PagePool::~PagePool() {
  {
    const MutexLock lock(&mutex_);
    ended_ = true;
  }
  changed_.NotifyAll();
  if (toucher_.joinable()) toucher_.join();
  for (const Region& region : regions_) munmap(region.mapped, region.mapped_bytes);
}

char* PagePool::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, 64);
  const MutexLock lock(&mutex_);
  used_bytes_ += bytes;
  used_now_.store(static_cast<int64_t>(used_bytes_), std::memory_order_relaxed);
  if (char* piece = TakeFreed(bytes)) return piece;
  largest_piece_ = std::max(largest_piece_, bytes);
  while (current_ < regions_.size() &&
         regions_[current_].bytes - regions_[current_].allocated < bytes) {
    LeaveRegion(&regions_[current_++]);
  }
  if (current_ == regions_.size()) AddRegion(bytes);
  Region& region = regions_[current_];
  char* piece = region.begin + region.allocated;
  region.allocated += bytes;
  allocated_bytes_ += bytes;
  if (used_bytes_ >= kTouchFromBytes) {
    if (!toucher_.joinable()) toucher_ = std::thread([this] { TouchAhead(); });
    if (AheadBytes() < TargetAheadBytes()) changed_.NotifyOne();
  }
  return piece;
}

void PagePool::Free(char* piece, size_t bytes) {
  bytes = RoundUp(bytes, 64);
  const MutexLock lock(&mutex_);
  used_bytes_ -= bytes;
  used_now_.store(static_cast<int64_t>(used_bytes_), std::memory_order_relaxed);
  AddFreed(piece, bytes);
}

// Takes a freed piece of the same size. What grew leaves smaller pieces of itself that no other
// needs, so the blocks of lists are cut from these.
char* PagePool::TakeFreed(size_t bytes) {
  auto found = freed_.find(bytes);
  if (found == freed_.end() && bytes <= kBlockBytes) found = freed_.upper_bound(bytes);
  if (found == freed_.end()) return nullptr;
  const size_t found_bytes = found->first;
  FreePiece* const piece = found->second;
  found->second = piece->next;
  if (piece->next == nullptr) freed_.erase(found);
  char* const taken = reinterpret_cast<char*>(piece);
  if (found_bytes > bytes) AddFreed(taken + bytes, found_bytes - bytes);
  return taken;
}

void PagePool::AddFreed(char* piece, size_t bytes) {
  FreePiece*& first = freed_[bytes];
  auto* freed = reinterpret_cast<FreePiece*>(piece);
  freed->next = first;
  first = freed;
}

// Pages at a region's end that were touched ahead are not left behind.
void PagePool::LeaveRegion(Region* region) {
  if (region->touched <= region->allocated) return;
  const size_t bytes = region->touched - region->allocated;
  AddFreed(region->begin + region->allocated, bytes);
  region->allocated += bytes;
  allocated_bytes_ += bytes;
}

void PagePool::SetMostBytes(size_t bytes) {
  const MutexLock lock(&mutex_);
  most_bytes_ = bytes;
}

void PagePool::SetMostAheadBytes(size_t bytes) {
  const MutexLock lock(&mutex_);
  most_ahead_bytes_ = bytes;
}

int64_t PagePool::SpareBytes() const {
  const MutexLock lock(&mutex_);
  size_t bytes = 0;
  for (const Region& region : regions_) bytes += std::max(region.allocated, region.touched);
  return static_cast<int64_t>(bytes - used_bytes_);
}

// Pages that nobody touches cost nothing.
void PagePool::AddRegion(size_t min_bytes) {
  size_t bytes = kFirstRegionBytes;
  for (const Region& region : regions_) bytes += region.bytes;
  bytes = std::min(bytes, kMaxRegionBytes);
  // A region is much larger than a piece, so little is wasted at its end.
  bytes = RoundUp(std::max({bytes, min_bytes, 8 * largest_piece_}), kHugePageBytes);
  Region region{};
  region.bytes = bytes;
  region.mapped_bytes = bytes + kHugePageBytes;
  void* mapped = mmap(nullptr, region.mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  region.mapped = static_cast<char*>(mapped);
  const size_t at = reinterpret_cast<uintptr_t>(mapped);
  region.begin = region.mapped + (RoundUp(at, kHugePageBytes) - at);
  // If the system has no huge pages, small ones will do.
  const bool huge = bytes >= kHugeRegionBytes && most_bytes_ / kHugePagesOfMost >= kHugePageBytes;
  madvise(region.begin, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  regions_.push_back(region);
}

size_t PagePool::AheadBytes() const {
  size_t bytes = 0;
  for (size_t i = current_; i < regions_.size(); ++i) {
    bytes += std::max(regions_[i].allocated, regions_[i].touched) - regions_[i].allocated;
  }
  return bytes;
}

size_t PagePool::TargetAheadBytes() const {
  const size_t taken = allocated_bytes_ + elsewhere_.load(std::memory_order_relaxed);
  const size_t left = most_bytes_ - std::min(most_bytes_, taken);
  const size_t share = std::clamp(used_bytes_ / kAheadShare, kMinAheadBytes, kMaxAheadBytes);
  return std::min({left, most_ahead_bytes_, share});
}

void PagePool::TouchAhead() {
  const MutexLock lock(&mutex_);
  while (!ended_) {
    if (AheadBytes() >= TargetAheadBytes()) {
      changed_.Wait(&mutex_);
      continue;
    }
    size_t i = current_;
    while (i < regions_.size() && regions_[i].touched == regions_[i].bytes) ++i;
    if (i == regions_.size()) {
      AddRegion(0);
      continue;
    }
    Region& region = regions_[i];
    const size_t first =
        std::max(region.touched, region.allocated / kHugePageBytes * kHugePageBytes);
    const size_t missing = RoundUp(TargetAheadBytes() - AheadBytes(), kPageBytes);
    const size_t step =
        most_bytes_ == SIZE_MAX ? kHugePageBytes : std::min(kHugePageBytes, missing);
    const size_t last = std::min(region.bytes, first + step);
    char* const begin = region.begin;
    mutex_.Unlock();
    TouchPages(begin + first, begin + last);
    mutex_.Lock();
    regions_[i].touched = last;
    if (i < current_) LeaveRegion(&regions_[i]);
  }
}

}  // namespace embedps
