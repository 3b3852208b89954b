// A thread that evicts rows beside training.
#ifndef EMBEDPS_KERNELS_STORE_SWEEPER_H_
#define EMBEDPS_KERNELS_STORE_SWEEPER_H_

#include <functional>
#include <thread>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/throttle.h"

namespace embedps {

// Runs sweeps one after the other on a nice thread. The sweep pauses between its slices, so all
// background threads of the process together take a small share of the cores.
class Sweeper {
 public:
  // What a sweep calls between two slices of rows. Returns false once the sweep must end.
  using Pause = std::function<bool()>;

  // `sweep` visits all rows once. `is_due` tells whether it could find something to do.
  Sweeper(std::function<void(const Pause&)> sweep, std::function<bool()> is_due,
          std::function<bool()> is_busy);
  ~Sweeper();
  Sweeper(const Sweeper&) = delete;
  Sweeper& operator=(const Sweeper&) = delete;

  // Holds sweeps, or lets them go on where they were. When it returns from a hold, no slice is
  // under way. Do not call it from a sweep.
  void Hold(bool held);

 private:
  // A clock that wakes when the object ends.
  class Waiter : public ThrottleClock {
   public:
    explicit Waiter(Sweeper* sweeper) : sweeper_(sweeper) {}
    void Sleep(double secs) override { sweeper_->Wait(secs); }

   private:
    Sweeper* const sweeper_;
  };

  void Run();
  bool BeginSlice();  // waits while sweeps are held; returns false once the object ends
  void EndSlice();
  bool Wait(double secs);  // returns false once the object ends

  const std::function<void(const Pause&)> sweep_;
  const std::function<bool()> is_due_, is_busy_;
  Mutex mutex_;
  bool ended_ GUARDED_BY(mutex_) = false;
  bool held_ GUARDED_BY(mutex_) = false;
  bool in_slice_ GUARDED_BY(mutex_) = false;
  CondVar changed_;
  std::thread thread_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_SWEEPER_H_
