// Records which steps a server has applied, so that it applies none twice, and how stale they were.
#ifndef EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_
#define EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

// Thread-safe. Takes one bit per step, and a number per worker and staleness.
class StepLog {
 public:
  // A step of a worker that read the server's state after `seen` steps.
  struct Entry {
    uint32_t step = 0;
    int64_t worker = 0, seen = 0;
  };
  using Begin = std::function<void()>;

  bool Has(uint32_t step) const {
    const MutexLock lock(&mutex_);
    return HasLocked(step);
  }

  // Returns how many steps were added.
  int64_t Count() const {
    const MutexLock lock(&mutex_);
    return count_;
  }

  // Adds a step. The steps that were added since its worker read are its staleness. A step that the
  // log has changes nothing.
  void Add(uint32_t step, int64_t worker, int64_t seen) { Add({{step, worker, seen}}); }

  // Adds the parts of a step together: none of them makes another stale. Calls what waits for one.
  void Add(const std::vector<Entry>& parts) {
    std::vector<Begin> begun;
    {
      const MutexLock lock(&mutex_);
      const int64_t before = count_;
      for (const Entry& part : parts) {
        if (HasLocked(part.step)) continue;
        blocks_[part.step / kBlockSteps].set(part.step % kBlockSteps);
        ++staleness_[{part.worker, before - part.seen}];
        ++count_;
        if (!waiting_.empty()) TakeWaiting(part.step, &begun);
      }
    }
    for (const Begin& each : begun) each();
  }

  // Calls `begin` as soon as the log has a step, maybe at once. Returns a number for `Cancel`.
  int64_t WhenAdded(uint32_t step, Begin begin) {
    {
      const MutexLock lock(&mutex_);
      if (!HasLocked(step)) {
        waiting_.insert({step, {next_ticket_, std::move(begin)}});
        return next_ticket_++;
      }
    }
    begin();
    return -1;
  }

  // Forgets what waits.
  void Cancel(int64_t ticket) {
    const MutexLock lock(&mutex_);
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      at = at->second.first == ticket ? waiting_.erase(at) : std::next(at);
    }
  }

  // Lists (worker, staleness, number of steps), sorted.
  std::vector<std::array<int64_t, 3>> Staleness() const {
    const MutexLock lock(&mutex_);
    std::vector<std::array<int64_t, 3>> found;
    found.reserve(staleness_.size());
    for (const auto& [key, steps] : staleness_) found.push_back({key.first, key.second, steps});
    return found;
  }

 private:
  bool HasLocked(uint32_t step) const EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto block = blocks_.find(step / kBlockSteps);
    return block != blocks_.end() && block->second.test(step % kBlockSteps);
  }

  void TakeWaiting(uint32_t step, std::vector<Begin>* begun) EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto [first, last] = waiting_.equal_range(step);
    for (auto at = first; at != last; ++at) begun->push_back(std::move(at->second.second));
    waiting_.erase(first, last);
  }

  static constexpr uint32_t kBlockSteps = 4096;
  mutable Mutex mutex_;
  std::map<uint32_t, std::bitset<kBlockSteps>> blocks_ GUARDED_BY(mutex_);
  // By worker and staleness.
  std::map<std::pair<int64_t, int64_t>, int64_t> staleness_ GUARDED_BY(mutex_);
  // By step: ticket, what to call.
  std::multimap<uint32_t, std::pair<int64_t, Begin>> waiting_ GUARDED_BY(mutex_);
  int64_t next_ticket_ GUARDED_BY(mutex_) = 0;
  int64_t count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_
