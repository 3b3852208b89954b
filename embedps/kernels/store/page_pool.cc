#include "embedps/kernels/store/page_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace embedps {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kFirstRegionBytes = 2 << 20;  // each is as large as all before it together
constexpr size_t kMaxRegionBytes = 256 << 20;
constexpr size_t kHugeRegionBytes = 8 << 20;  // from here on they ask for huge pages
constexpr size_t kMinAheadBytes = 8 << 20;
constexpr size_t kMaxAheadBytes = 64 << 20;
constexpr size_t kAheadShare = 16;  // a sixteenth of what is held, between the two

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Changes nothing that others write meanwhile: a page may have been given out already, where the
// thread is behind. ThreadSanitizer takes any two unordered writes of a byte for a race.
__attribute__((no_sanitize("thread"))) void TouchPages(char* begin, char* end) {
  for (char* page = begin; page < end; page += kPageBytes) {
    __atomic_fetch_or(page, 0, __ATOMIC_RELAXED);
  }
}

}  // namespace

PagePool::~PagePool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  wanted_.notify_all();
  if (maker_.joinable()) maker_.join();
  for (const Region& region : regions_) munmap(region.mapped, region.mapped_bytes);
}

char* PagePool::Take(size_t bytes) {
  bytes = RoundUp(bytes, 64);
  std::lock_guard<std::mutex> lock(mutex_);
  held_bytes_ += bytes;
  if (auto& pieces = given_back_[bytes]; !pieces.empty()) {
    char* piece = pieces.back();
    pieces.pop_back();
    return piece;
  }
  largest_piece_ = std::max(largest_piece_, bytes);
  while (current_ < regions_.size() &&
         regions_[current_].bytes - regions_[current_].taken < bytes) {
    ++current_;
  }
  if (current_ == regions_.size()) AddRegion(bytes);
  Region& region = regions_[current_];
  char* piece = region.begin + region.taken;
  region.taken += bytes;
  if (held_bytes_ >= kMakeFromBytes) {
    if (!maker_.joinable()) maker_ = std::thread([this] { MakePages(); });
    if (AheadBytes() < WantedBytes()) wanted_.notify_one();
  }
  return piece;
}

void PagePool::GiveBack(char* piece, size_t bytes) {
  bytes = RoundUp(bytes, 64);
  std::lock_guard<std::mutex> lock(mutex_);
  held_bytes_ -= bytes;
  given_back_[bytes].push_back(piece);
}

int64_t PagePool::SpareBytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const Region& region : regions_) bytes += std::max(region.taken, region.made);
  return static_cast<int64_t>(bytes - held_bytes_);
}

// Untouched pages of a region cost nothing.
void PagePool::AddRegion(size_t least_bytes) {
  size_t bytes = kFirstRegionBytes;
  for (const Region& region : regions_) bytes += region.bytes;
  bytes = std::min(bytes, kMaxRegionBytes);
  // So that what does not fit at a region's end is little of it.
  bytes = RoundUp(std::max({bytes, least_bytes, 8 * largest_piece_}), kHugePageBytes);
  Region region{};
  region.bytes = bytes;
  region.mapped_bytes = bytes + kHugePageBytes;
  void* mapped = mmap(nullptr, region.mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  region.mapped = static_cast<char*>(mapped);
  const size_t at = reinterpret_cast<uintptr_t>(mapped);
  region.begin = region.mapped + (RoundUp(at, kHugePageBytes) - at);
  // Where the kernel has none, small ones do.
  madvise(region.begin, bytes, bytes < kHugeRegionBytes ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  regions_.push_back(region);
}

// Of pages made and not given out.
size_t PagePool::AheadBytes() const {
  size_t bytes = 0;
  for (size_t i = current_; i < regions_.size(); ++i) {
    bytes += std::max(regions_[i].taken, regions_[i].made) - regions_[i].taken;
  }
  return bytes;
}

size_t PagePool::WantedBytes() const {
  return std::clamp(held_bytes_ / kAheadShare, kMinAheadBytes, kMaxAheadBytes);
}

void PagePool::MakePages() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ended_) {
    if (AheadBytes() >= WantedBytes()) {
      wanted_.wait(lock);
      continue;
    }
    size_t i = current_;
    while (i < regions_.size() && regions_[i].made == regions_[i].bytes) ++i;
    if (i == regions_.size()) {
      AddRegion(0);
      continue;
    }
    Region& region = regions_[i];
    const size_t first = std::max(region.made, region.taken / kHugePageBytes * kHugePageBytes);
    const size_t last = std::min(region.bytes, first + kHugePageBytes);
    char* const begin = region.begin;
    lock.unlock();
    TouchPages(begin + first, begin + last);
    lock.lock();
    regions_[i].made = last;
  }
}

}  // namespace embedps
