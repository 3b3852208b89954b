// Threads that wait for a disk: its queue is as deep as they are many.
#ifndef EMBEDPS_KERNELS_STORE_READ_POOL_H_
#define EMBEDPS_KERNELS_STORE_READ_POOL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

class ReadPool {
 public:
  explicit ReadPool(int num_threads) : num_threads_(num_threads) {}
  ~ReadPool();
  ReadPool(const ReadPool&) = delete;
  ReadPool& operator=(const ReadPool&) = delete;

  // Calls work(i) for each i below `count`, on the threads and on the calling one. Returns when all
  // of it is done. Several threads may call it. The threads start with the first call that has more
  // than one piece of work.
  void Run(int64_t count, const std::function<void(int64_t)>& work);

 private:
  struct Job {
    int64_t count;
    const std::function<void(int64_t)>* work;
    std::atomic<int64_t> next{0};
    int64_t done = 0;  // under the pool's mutex
  };

  void Serve();
  // Works on a job until none of its work is left to begin; returns how much it did.
  static int64_t Work(Job* job);

  const int num_threads_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<Job>> jobs_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_READ_POOL_H_
