#include "embedps/kernels/runtime/call_steps.h"

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

TEST(StepsOfACallHaveOneNumberInEachAttempt) {
  CallSteps steps;
  EXPECT_EQ(steps.Next(7, 0), 0);
  EXPECT_EQ(steps.Next(8, 1), 1);
  EXPECT_EQ(steps.Next(7, 0), 2);
  EXPECT_EQ(steps.Next(7, 2), 0);  // the second attempt
  EXPECT_EQ(steps.Next(7, 2), 2);
  EXPECT_EQ(steps.Next(7, 2), 3);   // which comes further
  EXPECT_EQ(steps.Next(-1, 0), 4);  // no call
  EXPECT_EQ(steps.Next(-1, 0), 5);
  EXPECT_EQ(steps.Count(), 6);
  steps.Restart(100);
  EXPECT_EQ(steps.Next(7, 3), 100);
}

TEST(OnlyTheLastCallsAreRemembered) {
  CallSteps steps;
  const auto most = static_cast<int64_t>(CallSteps::kMaxCalls);
  for (int64_t call = 0; call <= most; ++call) EXPECT_EQ(steps.Next(call, 0), call);
  EXPECT_EQ(steps.Next(1, 1), 1);
  EXPECT_EQ(steps.Next(most, 1), most);
}

TEST(ThreadsGetNumbersOfTheirOwn) {
  CallSteps steps;
  std::vector<std::vector<int64_t>> found(4);
  std::vector<std::thread> threads;
  for (int64_t call = 0; call < 4; ++call) {
    threads.emplace_back([&steps, &numbers = found[call], call] {
      for (int i = 0; i < 500; ++i) numbers.push_back(steps.Next(call, 0));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int64_t> all;
  for (const auto& numbers : found) all.insert(numbers.begin(), numbers.end());
  EXPECT_EQ(all.size(), 2000u);
  EXPECT_EQ(steps.Count(), 2000);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
