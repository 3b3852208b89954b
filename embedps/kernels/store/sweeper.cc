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
    const MutexLock lock(&mutex_);
    ended_ = true;
  }
  changed_.NotifyAll();
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
  const MutexLock lock(&mutex_);
  held_ = held;
  changed_.NotifyAll();
  while (held && in_slice_) changed_.Wait(&mutex_);
}

bool Sweeper::BeginSlice() {
  const MutexLock lock(&mutex_);
  while (held_ && !ended_) changed_.Wait(&mutex_);
  in_slice_ = !ended_;
  return in_slice_;
}

void Sweeper::EndSlice() {
  const MutexLock lock(&mutex_);
  in_slice_ = false;
  changed_.NotifyAll();
}

bool Sweeper::Wait(double secs) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() +
                   std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(secs));
  const MutexLock lock(&mutex_);
  while (!ended_ && changed_.WaitUntil(&mutex_, end)) {
  }
  return !ended_;
}

}  // namespace embedps
