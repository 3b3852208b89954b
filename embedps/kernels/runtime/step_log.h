// Records which steps a server has applied, so that it applies none twice.
#ifndef EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_
#define EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace embedps {

// Thread-safe. Takes one bit per step.
class StepLog {
 public:
  bool Has(uint32_t step) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(step / kBlockSteps);
    return block != blocks_.end() && block->second.test(step % kBlockSteps);
  }

  void Add(uint32_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[step / kBlockSteps].set(step % kBlockSteps);
  }

 private:
  static constexpr uint32_t kBlockSteps = 4096;
  mutable std::mutex mutex_;
  std::map<uint32_t, std::bitset<kBlockSteps>> blocks_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_STEP_LOG_H_
