// Records which steps a server has applied, so that it applies none twice, and how stale they were.
#ifndef EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_
#define EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace embedps {

// Thread-safe. Takes one bit per step, and a number per worker and staleness.
class StepLog {
 public:
  bool Has(uint32_t step) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return HasLocked(step);
  }

  // Returns how many steps were added.
  int64_t Count() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }

  // Adds a step of a worker that read the server's state after `seen` steps. The steps that were
  // added since then are its staleness. A step that the log has changes nothing.
  void Add(uint32_t step, int64_t worker, int64_t seen) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (HasLocked(step)) return;
    blocks_[step / kBlockSteps].set(step % kBlockSteps);
    ++staleness_[{worker, count_ - seen}];
    ++count_;
  }

  // Lists (worker, staleness, number of steps), sorted.
  std::vector<std::array<int64_t, 3>> Staleness() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::array<int64_t, 3>> found;
    found.reserve(staleness_.size());
    for (const auto& [key, steps] : staleness_) found.push_back({key.first, key.second, steps});
    return found;
  }

 private:
  bool HasLocked(uint32_t step) const {
    const auto block = blocks_.find(step / kBlockSteps);
    return block != blocks_.end() && block->second.test(step % kBlockSteps);
  }

  static constexpr uint32_t kBlockSteps = 4096;
  mutable std::mutex mutex_;
  std::map<uint32_t, std::bitset<kBlockSteps>> blocks_;
  std::map<std::pair<int64_t, int64_t>, int64_t> staleness_;  // by worker and staleness
  int64_t count_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_
