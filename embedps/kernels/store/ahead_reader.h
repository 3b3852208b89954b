// A thread that reads the rows of coming batches from disk.
#ifndef EMBEDPS_KERNELS_STORE_AHEAD_READER_H_
#define EMBEDPS_KERNELS_STORE_AHEAD_READER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

// The thread starts with the first batch. A batch that comes while kMostBatches wait is dropped:
// who looks it up reads its rows.
class AheadReader {
 public:
  static constexpr size_t kMostBatches = 8;

  explicit AheadReader(std::function<void(const IdsByTable&)> bring_in)
      : bring_in_(std::move(bring_in)) {}
  ~AheadReader() {
    std::thread thread;
    {
      const MutexLock lock(&mutex_);
      ended_ = true;
      thread = std::move(thread_);
    }
    changed_.NotifyAll();
    if (thread.joinable()) thread.join();
  }
  AheadReader(const AheadReader&) = delete;
  AheadReader& operator=(const AheadReader&) = delete;

  // Copies a batch of `num_tables` tables, and returns.
  void Add(const IdsByTable& batch, int num_tables) {
    const MutexLock lock(&mutex_);
    if (batches_.size() >= kMostBatches) return;
    batches_.push_back(
        {{batch.ids, batch.ids + batch.num_ids}, {batch.splits, batch.splits + num_tables + 1}});
    if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
    changed_.NotifyAll();
  }

  // Waits until no batch is left to read.
  void Wait() {
    const MutexLock lock(&mutex_);
    while (is_working_ || !batches_.empty()) changed_.Wait(&mutex_);
  }

 private:
  struct Batch {
    std::vector<int64_t> ids;
    std::vector<int32_t> splits;
  };

  void Work() {
    while (true) {
      Batch batch;
      {
        const MutexLock lock(&mutex_);
        is_working_ = false;
        if (batches_.empty()) changed_.NotifyAll();
        while (!ended_ && batches_.empty()) changed_.Wait(&mutex_);
        if (ended_) return;
        batch = std::move(batches_.front());
        batches_.pop_front();
        is_working_ = true;
      }
      bring_in_({batch.ids.data(), static_cast<int64_t>(batch.ids.size()), batch.splits.data()});
    }
  }

  const std::function<void(const IdsByTable&)> bring_in_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Batch> batches_ GUARDED_BY(mutex_);
  std::thread thread_ GUARDED_BY(mutex_);
  bool is_working_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_AHEAD_READER_H_
