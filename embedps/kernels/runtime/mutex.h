// A mutex, a lock and a condition whose use Clang checks: libstdc++'s have no annotations.
#ifndef EMBEDPS_KERNELS_RUNTIME_MUTEX_H_
#define EMBEDPS_KERNELS_RUNTIME_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "embedps/kernels/runtime/thread_annotations.h"

namespace embedps {

class LOCKABLE Mutex {
 public:
  void Lock() EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  bool TryLock() EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  void Unlock() UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a mutex as long as it lives.
class SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  // Takes over a mutex that is locked.
  MutexLock(Mutex* mutex, std::adopt_lock_t) EXCLUSIVE_LOCKS_REQUIRED(mutex) : mutex_(mutex) {}
  ~MutexLock() UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits for what another thread changes under the mutex. A wait may end without a change, so it
// belongs into a loop: a lambda would not be seen to hold the mutex.
class CondVar {
 public:
  void Wait(Mutex* mutex) EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }

  // Returns false if the time has come.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point time)
      EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool is_before = changed_.wait_until(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return is_before;
  }

  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_MUTEX_H_
