#include "embedps/kernels/runtime/throttle.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

namespace embedps {
namespace {

constexpr double kShareOfCores = 0.04;
constexpr double kLongestSleepSecs = 0.02;  // it looks around so often

std::atomic<int> num_paces{0};

double Read(clockid_t clock) {
  timespec time;
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double PaceClock::Now() { return Read(CLOCK_MONOTONIC); }
double PaceClock::ThreadSecs() { return Read(CLOCK_THREAD_CPUTIME_ID); }
void PaceClock::Sleep(double secs) {
  std::this_thread::sleep_for(std::chrono::duration<double>(secs));
}

double Pace::DefaultCores() {
  static const unsigned cores = std::thread::hardware_concurrency();  // it reads a file of /sys
  return kShareOfCores * std::max(1u, cores);
}

Pace::Pace(double cores, double rest_secs, std::function<bool()> is_busy, PaceClock* clock)
    : cores_(cores),
      is_busy_(std::move(is_busy)),
      clock_(clock),
      left_secs_(rest_secs),
      at_(clock->Now()),
      thread_secs_(clock->ThreadSecs()) {
  ++num_paces;
}

Pace::~Pace() { --num_paces; }

void Pace::Rest() {
  double now = clock_->Now();
  const double worked = clock_->ThreadSecs() - thread_secs_;
  const double until = at_ + worked * num_paces.load() / cores_;
  while (now < until && left_secs_ > 0 && is_busy_()) {
    clock_->Sleep(std::min({until - now, left_secs_, kLongestSleepSecs}));
    const double before = std::exchange(now, clock_->Now());
    left_secs_ -= now - before;
  }
  at_ = now;
  thread_secs_ = clock_->ThreadSecs();
}

}  // namespace embedps
