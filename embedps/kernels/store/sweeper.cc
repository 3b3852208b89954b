#include "embedps/kernels/store/sweeper.h"

#include <sys/resource.h>

#include <chrono>
#include <limits>
#include <utility>

namespace embedps {
namespace {

constexpr int kNiceness = 10;  // as the threads that write checkpoints
constexpr double kRestSecs =
    0.25;  // from the end of a sweep to the next question whether it is due

}  // namespace

Sweeper::Sweeper(std::function<void(const Pause&)> sweep, std::function<bool()> is_due,
                 std::function<bool()> is_busy)
    : sweep_(std::move(sweep)),
      is_due_(std::move(is_due)),
      is_busy_(std::move(is_busy)),
      thread_([this] { Run(); }) {}

Sweeper::~Sweeper() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Sweeper::Run() {
  ::setpriority(PRIO_PROCESS, 0, kNiceness);  // 0 is this thread
  while (Wait(kRestSecs)) {
    if (!is_due_()) continue;
    Waiter clock(this);
    Throttle throttle(Throttle::DefaultCores(), std::numeric_limits<double>::infinity(), is_busy_,
                      &clock);
    if (!BeginSlice()) return;
    sweep_([&] {
      EndSlice();
      throttle.Pause();
      return BeginSlice();
    });
    EndSlice();
  }
}

void Sweeper::Hold(bool held) {
  std::unique_lock<std::mutex> lock(mutex_);
  held_ = held;
  changed_.notify_all();
  if (held) changed_.wait(lock, [this] { return !in_slice_; });
}

bool Sweeper::BeginSlice() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !held_ || ended_; });
  in_slice_ = !ended_;
  return in_slice_;
}

void Sweeper::EndSlice() {
  std::lock_guard<std::mutex> lock(mutex_);
  in_slice_ = false;
  changed_.notify_all();
}

bool Sweeper::Wait(double secs) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(secs), [this] { return ended_; });
  return !ended_;
}

}  // namespace embedps
