#include "embedps/kernels/runtime/group_sums.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using Sums = GroupSums<int>;
using Found = std::vector<int>;

Found Values(const Sums::Parts& parts) {
  Found values;
  for (const auto& part : parts) values.push_back(*part);
  return values;
}

// Takes a group; the found values are {-1} until it is decided.
int64_t Take(Sums* sums, int64_t index, const std::vector<int64_t>& numbers, Found* found) {
  *found = {-1};
  int64_t ticket;
  EXPECT_OK(sums->Take(
      index, numbers, [found](const Sums::Parts& parts) { *found = Values(parts); }, &ticket));
  return ticket;
}

TEST(GroupIsAppliedOnceAndTheFirstAttemptAtAPartCounts) {
  StepLog log;
  Sums sums(&log);
  sums.Hold({7, 0, 0}, 70);
  sums.Hold({3, 1, 0}, 30);
  sums.Hold({3, 2, 0}, 99);
  Found one, other;
  Take(&sums, 0, {3, 7}, &one);
  EXPECT_EQ(one, Found({30, 70}));
  Take(&sums, 0, {3, 7}, &other);
  EXPECT_EQ(other, Found({-1}));  // until the group is applied
  sums.Applied();
  EXPECT_EQ(other, Found({}));
  EXPECT_TRUE(log.Has(3) && log.Has(7));
  EXPECT_EQ(sums.NumApplied(), 1);
  sums.Hold({3, 2, 0}, 99);
  Take(&sums, 0, {3, 7}, &one);
  EXPECT_EQ(one, Found({}));
  Take(&sums, -1, {}, &one);  // no group
  EXPECT_EQ(one, Found({}));
}

TEST(GroupsAreAppliedInOrder) {
  StepLog log;
  Sums sums(&log);
  for (uint32_t part = 0; part < 3; ++part) sums.Hold({part, 0, 0}, part);
  Found second, first;
  int begun = 0;
  Take(&sums, 1, {1, 2}, &second);
  sums.Await(2, [&begun] { ++begun; });
  EXPECT_EQ(second, Found({-1}));
  Take(&sums, 0, {0}, &first);
  EXPECT_EQ(first, Found({0}));
  sums.Applied();
  EXPECT_EQ(second, Found({1, 2}));
  EXPECT_EQ(begun, 0);
  sums.Applied();
  EXPECT_EQ(begun, 1);
}

TEST(GroupThatWasAbandonedIsAppliedByTheNextAttempt) {
  StepLog log;
  Sums sums(&log);
  sums.Hold({4, 0, 0}, 40);
  Found first, only_waits, cancelled, next;
  Take(&sums, 0, {4}, &first);
  Take(&sums, 0, {}, &only_waits);
  const int64_t ticket = Take(&sums, 0, {4}, &cancelled);
  Take(&sums, 0, {4}, &next);
  sums.Cancel(ticket);
  sums.Abandoned();
  EXPECT_EQ(next, Found({40}));
  EXPECT_EQ(cancelled, Found({-1}));
  EXPECT_EQ(only_waits, Found({-1}));
  sums.Abandoned();  // nobody is left to apply it
  EXPECT_TRUE(!log.Has(4));
  Take(&sums, 0, {4}, &first);
  EXPECT_EQ(first, Found({40}));
  sums.Applied();
  EXPECT_EQ(only_waits, Found({}));
}

TEST(GroupWithAPartThatDidNotComeIsRefused) {
  StepLog log;
  Sums sums(&log);
  int64_t ticket;
  EXPECT_TRUE(!sums.Take(0, {5}, [](const Sums::Parts&) {}, &ticket).ok());
}

// Several attempts take each group at once. Some of those that should apply it give up first.
TEST(EachGroupIsAppliedOnceWhateverManyAttemptsDo) {
  constexpr int kThreads = 4, kGroups = 300;
  StepLog log;
  Sums sums(&log);
  std::array<std::atomic<int>, kGroups> applied{};
  std::atomic<int> wrong{0};
  const auto attempt = [&](int thread) {
    for (int k = 0; k < kGroups; ++k) {
      const std::vector<int64_t> numbers = {2 * k, 2 * k + 1};
      for (const int64_t number : numbers) {
        sums.Hold({static_cast<uint32_t>(number), thread, 0}, static_cast<int>(number));
      }
      const int times = 1 + (k + thread) % 3;  // the last one does not give up
      for (int i = 1; i <= times; ++i) {
        std::promise<Sums::Parts> decided;
        int64_t ticket;
        wrong +=
            !sums.Take(
                     k, numbers, [&decided](const Sums::Parts& parts) { decided.set_value(parts); },
                     &ticket)
                 .ok();
        const Sums::Parts parts = decided.get_future().get();
        if (parts.empty()) continue;
        wrong += Values(parts) != Found({2 * k, 2 * k + 1});
        if (i < times) {
          sums.Abandoned();
        } else {
          ++applied[k];
          sums.Applied();
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(attempt, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (const auto& times : applied) EXPECT_EQ(times, 1);
  EXPECT_EQ(log.Count(), 2 * kGroups);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
