// Keeps threads that work beside training to a share of the cores. Plain C++17.
#ifndef EMBEDPS_KERNELS_RUNTIME_THROTTLE_H_
#define EMBEDPS_KERNELS_RUNTIME_THROTTLE_H_

#include <functional>

namespace embedps {

// Seconds: of the day, and of the processor for the calling thread.
class PaceClock {
 public:
  virtual ~PaceClock() = default;
  virtual double Now();
  virtual double ThreadSecs();
  virtual void Sleep(double secs);
};

// Of one thread, which makes it, works and rests. All threads that have a pace share the cores.
class Pace {
 public:
  // The most that a pace has by default: this part of the cores that the process may use.
  static double DefaultCores();

  // While `is_busy` says that others want the cores, all paces' threads together take so many of
  // them at most; but this one rests no longer than `rest_secs` in all.
  Pace(double cores, double rest_secs, std::function<bool()> is_busy, PaceClock* clock);
  ~Pace();
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  // Sleeps for as long as the work since the last call asks for. Not to be called with a lock that
  // others wait for.
  void Rest();

 private:
  const double cores_;
  const std::function<bool()> is_busy_;
  PaceClock* const clock_;
  double left_secs_;         // to rest
  double at_, thread_secs_;  // at the last call
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_THROTTLE_H_
