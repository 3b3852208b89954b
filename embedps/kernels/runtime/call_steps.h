// Numbers the steps of calls that may be attempted again, the same in each attempt.
#ifndef EMBEDPS_KERNELS_RUNTIME_CALL_STEPS_H_
#define EMBEDPS_KERNELS_RUNTIME_CALL_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"

namespace embedps {

// Thread-safe. A call takes some steps, one after the other. Its n-th step has one number,
// whichever attempt takes it. Remembers the last calls only.
class CallSteps {
 public:
  static constexpr size_t kMaxCalls = 16384;

  // Returns the number of an attempt's next step. A step of no call (-1) has a new number.
  int64_t Next(int64_t call, int64_t attempt) {
    const MutexLock lock(&mutex_);
    if (call < 0) return next_++;
    Call& found = calls_[call];
    const size_t index = found.taken[attempt]++;
    if (index == found.numbers.size()) found.numbers.push_back(next_++);
    const int64_t number = found.numbers[index];
    if (calls_.size() > kMaxCalls) calls_.erase(calls_.begin());
    return number;
  }

  // Returns how many numbers were given, those before the first included.
  int64_t Count() const {
    const MutexLock lock(&mutex_);
    return next_;
  }

  // Gives numbers from here on; forgets the calls.
  void Restart(int64_t next) {
    const MutexLock lock(&mutex_);
    next_ = next;
    calls_.clear();
  }

 private:
  struct Call {
    std::vector<int64_t> numbers;
    std::map<int64_t, size_t> taken;  // by attempt
  };
  mutable Mutex mutex_;
  std::map<int64_t, Call> calls_ GUARDED_BY(mutex_);
  int64_t next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_CALL_STEPS_H_
