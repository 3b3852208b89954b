#include "embedps/kernels/runtime/throttle.h"

#include <algorithm>
#include <memory>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

class FakeClock : public ThrottleClock {
 public:
  double Now() override { return now_; }
  double ThreadSecs() override { return thread_secs_; }
  void Sleep(double secs) override {
    now_ += secs;
    slept_ += secs;
    longest_ = std::max(longest_, secs);
  }
  // Passes time: `thread_secs` with a core and `waiting_secs` without one.
  void Work(double thread_secs, double waiting_secs = 0) {
    thread_secs_ += thread_secs;
    now_ += thread_secs + waiting_secs;
  }
  double slept() const { return slept_; }
  double longest() const { return longest_; }

 private:
  double now_ = 100, thread_secs_ = 5, slept_ = 0, longest_ = 0;
};

bool Near(double a, double b) { return a > b - 1e-6 && a < b + 1e-6; }

TEST(ThreadTakesItsShareOfTime) {
  FakeClock clock;
  Throttle throttle(0.1, 100, [] { return true; }, &clock);
  for (int i = 0; i < 10; ++i) {
    clock.Work(0.01);
    throttle.Pause();
  }
  EXPECT_TRUE(Near(clock.slept(), 0.9));  // 0.1 s of work in 1 s
  EXPECT_TRUE(clock.longest() <= 0.02 + 1e-9);
}

TEST(ShortPiecesOfWorkAreCountedTogether) {
  FakeClock clock;
  Throttle throttle(0.1, 100, [] { return true; }, &clock);
  for (int i = 0; i < 9; ++i) {
    clock.Work(0.0001);
    throttle.Pause();
  }
  EXPECT_EQ(clock.slept(), 0.0);
  clock.Work(0.0002);
  throttle.Pause();
  EXPECT_TRUE(Near(clock.slept(), 0.0099));
}

TEST(TimeWithoutACoreCountsAsSleep) {
  FakeClock clock;
  Throttle throttle(0.1, 100, [] { return true; }, &clock);
  clock.Work(0.01, 0.06);
  throttle.Pause();
  EXPECT_TRUE(Near(clock.slept(), 0.03));
  clock.Work(0.01, 1.0);  // a surplus is not kept for later
  throttle.Pause();
  EXPECT_TRUE(Near(clock.slept(), 0.03));
  clock.Work(0.01);
  throttle.Pause();
  EXPECT_TRUE(Near(clock.slept(), 0.12));
}

TEST(TotalSleepIsLimited) {
  FakeClock clock;
  Throttle throttle(0.1, 0.25, [] { return true; }, &clock);
  for (int i = 0; i < 10; ++i) {
    clock.Work(0.01);
    throttle.Pause();
  }
  EXPECT_TRUE(Near(clock.slept(), 0.25));
  FakeClock none;
  Throttle without_sleep(0.1, 0, [] { return true; }, &none);
  none.Work(1);
  without_sleep.Pause();
  EXPECT_EQ(none.slept(), 0.0);
}

TEST(ThreadSleepsOnlyWhileOthersAreBusy) {
  FakeClock clock;
  bool busy = false;
  Throttle throttle(0.1, 100, [&] { return busy; }, &clock);
  clock.Work(1);
  throttle.Pause();
  EXPECT_EQ(clock.slept(), 0.0);
  // A sleep ends when the others are done.
  int asked = 0;
  Throttle other(0.1, 100, [&] { return ++asked <= 3; }, &clock);
  clock.Work(1);
  other.Pause();
  EXPECT_TRUE(Near(clock.slept(), 3 * 0.02));
}

TEST(ThrottlesShareTheCores) {
  FakeClock clock;
  Throttle throttle(0.1, 100, [] { return true; }, &clock);
  auto second = std::make_unique<Throttle>(0.1, 100, [] { return true; }, &clock);
  clock.Work(0.01);
  throttle.Pause();
  EXPECT_TRUE(Near(clock.slept(), 0.19));  // half of a tenth
  second.reset();
  clock.Work(0.01);
  throttle.Pause();
  EXPECT_TRUE(Near(clock.slept(), 0.19 + 0.09));
}

TEST(RealClockCountsTheThreadsWork) {
  ThrottleClock clock;
  const double thread = clock.ThreadSecs();
  while (clock.ThreadSecs() - thread < 0.01) {
  }
  const double began = clock.Now();  // a thread that waits for a core from here on needs less sleep
  Throttle throttle(0.5, 100, [] { return true; }, &clock);
  const double worked = clock.ThreadSecs();
  while (clock.ThreadSecs() - worked < 0.02) {
  }
  throttle.Pause();
  EXPECT_TRUE(clock.Now() - began >= 0.04 - 1e-3);
  EXPECT_TRUE(Throttle::DefaultCores() > 0);
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
