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
constexpr double kLongestSleepSecs = 0.02;  // how often it asks `is_busy` again
// A sleep costs a switch of threads and back, so it follows this much work at least.
constexpr double kLeastWorkSecs = 0.001;

std::atomic<int> num_throttles{0};

double Read(clockid_t clock) {
  timespec time;
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double ThrottleClock::Now() { return Read(CLOCK_MONOTONIC); }
double ThrottleClock::ThreadSecs() { return Read(CLOCK_THREAD_CPUTIME_ID); }
void ThrottleClock::Sleep(double secs) {
  std::this_thread::sleep_for(std::chrono::duration<double>(secs));
}

double Throttle::DefaultCores() {
  static const unsigned cores = std::thread::hardware_concurrency();  // reads a file of /sys
  return kShareOfCores * std::max(1u, cores);
}

Throttle::Throttle(double cores, double max_pause_secs, std::function<bool()> is_busy,
                   ThrottleClock* clock)
    : cores_(cores),
      is_busy_(std::move(is_busy)),
      clock_(clock),
      left_secs_(max_pause_secs),
      at_(clock->Now()),
      thread_secs_(clock->ThreadSecs()) {
  ++num_throttles;
}

Throttle::~Throttle() { --num_throttles; }

void Throttle::Pause() {
  const double worked = clock_->ThreadSecs() - thread_secs_;
  if (worked < kLeastWorkSecs) return;
  double now = clock_->Now();
  const double until = at_ + worked * num_throttles.load() / cores_;
  while (now < until && left_secs_ > 0 && is_busy_()) {
    clock_->Sleep(std::min({until - now, left_secs_, kLongestSleepSecs}));
    const double before = std::exchange(now, clock_->Now());
    left_secs_ -= now - before;
  }
  at_ = now;
  thread_secs_ = clock_->ThreadSecs();
}

}  // namespace embedps
