// Limits background threads to a share of the cores. Plain C++17.
#ifndef EMBEDPS_KERNELS_RUNTIME_THROTTLE_H_
#define EMBEDPS_KERNELS_RUNTIME_THROTTLE_H_

#include <functional>

namespace embedps {

// The clock of a Throttle, in seconds. Tests replace it.
class ThrottleClock {
 public:
  virtual ~ThrottleClock() = default;
  virtual double Now();
  virtual double ThreadSecs();  // processor time of the calling thread
  virtual void Sleep(double secs);
};

// Slows down one background thread. The thread creates it, works, and calls Pause between pieces of
// work. All throttled threads of the process share one budget of cores.
class Throttle {
 public:
  // Returns the default budget: a share of the cores that the process may use.
  static double DefaultCores();

  // While `is_busy` returns true, all throttled threads together use at most `cores`. This one
  // sleeps no longer than `max_pause_secs` in total.
  Throttle(double cores, double max_pause_secs, std::function<bool()> is_busy,
           ThrottleClock* clock);
  ~Throttle();
  Throttle(const Throttle&) = delete;
  Throttle& operator=(const Throttle&) = delete;

  // Sleeps until the work since the last sleep fits the budget; returns at once after less than a
  // millisecond of work. Do not call it with a lock that others wait for.
  void Pause();

 private:
  const double cores_;
  const std::function<bool()> is_busy_;
  ThrottleClock* const clock_;
  double left_secs_;         // that it may still sleep
  double at_, thread_secs_;  // the clock's values at the last call that counted the work
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_THROTTLE_H_
