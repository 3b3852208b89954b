// Which rows are being read from disk, so that no two threads read the same one.
#ifndef EMBEDPS_KERNELS_STORE_READS_UNDER_WAY_H_
#define EMBEDPS_KERNELS_STORE_READS_UNDER_WAY_H_

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

// Rows have the numbers of their places on disk. A place that another row gets meanwhile costs a
// wait, or a read, and nothing else. Whoever waits has ended its own reads, so nobody waits for
// himself.
class ReadsUnderWay {
 public:
  // Begins a row's read; returns false if another thread has begun it, and not ended it.
  bool Begin(uint32_t location) {
    const MutexLock lock(&mutex_);
    return locations_.insert(location).second;
  }

  // Ends reads: the rows are in memory, or have no place there.
  void End(const std::vector<uint32_t>& locations) {
    if (locations.empty()) return;
    const MutexLock lock(&mutex_);
    for (const uint32_t location : locations) locations_.erase(location);
    changed_.NotifyAll();
  }

  // Waits for the ends of others' reads.
  void Wait(const std::vector<uint32_t>& locations) {
    const MutexLock lock(&mutex_);
    for (const uint32_t location : locations) {
      while (locations_.count(location) > 0) changed_.Wait(&mutex_);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::unordered_set<uint32_t> locations_ GUARDED_BY(mutex_);
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_READS_UNDER_WAY_H_
