#include "embedps/kernels/runtime/step_sums.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using Sums = StepSums<int>;

std::vector<int> Values(const Sums::Parts& parts) {
  std::vector<int> values;
  for (const auto& part : parts) values.push_back(*part);
  return values;
}

// Adds part `rank` of a step, and gives what was decided at once; {-1} if nothing was.
std::vector<int> Add(Sums* sums, uint32_t step, int64_t rank, int64_t num_parts, int value,
                     int64_t worker = 0, int64_t seen = 0) {
  std::vector<int> found = {-1};
  int64_t ticket;
  const StepLog::Entry entry = {static_cast<uint32_t>(step + rank), worker, seen};
  EXPECT_OK(sums->Add(
      rank, num_parts, entry, value, [&found](const Sums::Parts& parts) { found = Values(parts); },
      &ticket));
  EXPECT_EQ(ticket, -1);
  return found;
}

TEST(PartsComeInOrderOfRankWhoeverIsFirst) {
  StepLog log;
  Sums sums(&log);
  EXPECT_EQ(Add(&sums, 10, 2, 3, 102), std::vector<int>({}));
  EXPECT_EQ(Add(&sums, 10, 0, 3, 100), std::vector<int>({}));
  EXPECT_EQ(Add(&sums, 13, 0, 1, 130), std::vector<int>({130}));  // another step
  EXPECT_EQ(Add(&sums, 10, 1, 3, 101), std::vector<int>({100, 101, 102}));
  sums.Applied(10);
  for (uint32_t part = 10; part < 13; ++part) EXPECT_TRUE(log.Has(part));
  EXPECT_TRUE(!log.Has(13));
}

TEST(StepsThatLackPartsAreListed) {
  using List = std::vector<std::array<int64_t, 3>>;
  StepLog log;
  Sums sums(&log);
  EXPECT_TRUE(sums.Open().empty());
  Add(&sums, 10, 2, 3, 0, /*worker=*/7);
  EXPECT_TRUE(sums.Open() == List({{10, 0, -1}, {10, 1, -1}, {10, 2, 7}}));
  Add(&sums, 10, 0, 3, 0, /*worker=*/5);
  EXPECT_TRUE(sums.Open() == List({{10, 0, 5}, {10, 1, -1}, {10, 2, 7}}));
  Add(&sums, 10, 1, 3, 0, /*worker=*/6);
  EXPECT_TRUE(sums.Open().empty());
}

TEST(FirstPartOfARankCountsAndAnAppliedStepIgnoresAll) {
  StepLog log;
  Sums sums(&log);
  EXPECT_EQ(Add(&sums, 0, 1, 2, 1), std::vector<int>({}));
  EXPECT_EQ(Add(&sums, 0, 1, 2, 9), std::vector<int>({}));
  EXPECT_EQ(Add(&sums, 0, 0, 2, 0), std::vector<int>({0, 1}));
  sums.Applied(0);
  for (int64_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(Add(&sums, 0, rank, 2, 9), std::vector<int>({}));
  }
}

TEST(StepThatWasAbandonedIsAppliedByTheNextAttempt) {
  StepLog log;
  Sums sums(&log);
  Add(&sums, 0, 0, 2, 5);
  EXPECT_EQ(Add(&sums, 0, 1, 2, 6), std::vector<int>({5, 6}));
  sums.Abandoned(0);
  EXPECT_TRUE(!log.Has(0));
  EXPECT_EQ(Add(&sums, 0, 0, 2, 9), std::vector<int>({5, 6}));
  sums.Applied(0);
  EXPECT_TRUE(log.Has(0));
}

TEST(AttemptThatMeetsAnotherThatAppliesWaitsForItsEnd) {
  StepLog log;
  Sums sums(&log);
  EXPECT_EQ(Add(&sums, 0, 0, 1, 5), std::vector<int>({5}));
  std::vector<std::vector<int>> found;
  std::array<int64_t, 3> tickets;
  for (int64_t& ticket : tickets) {
    EXPECT_OK(sums.Add(
        0, 1, {0, 0, 0}, 9, [&found](const Sums::Parts& parts) { found.push_back(Values(parts)); },
        &ticket));
    EXPECT_TRUE(ticket >= 0);
  }
  EXPECT_EQ(found.size(), 0u);
  sums.Cancel(tickets[0]);
  sums.Abandoned(0);
  EXPECT_EQ(found, std::vector<std::vector<int>>({{5}}));
  sums.Applied(0);
  EXPECT_EQ(found, std::vector<std::vector<int>>({{5}, {}}));
}

TEST(PartsThatCannotBeAreRefused) {
  StepLog log;
  Sums sums(&log);
  const auto refused = [&sums](uint32_t part, int64_t rank, int64_t num_parts) {
    int64_t ticket;
    return !sums.Add(rank, num_parts, {part, 0, 0}, 0, [](const Sums::Parts&) {}, &ticket).ok();
  };
  EXPECT_TRUE(refused(5, 2, 2));
  EXPECT_TRUE(refused(5, -1, 2));
  EXPECT_TRUE(refused(5, 0, 0));
  EXPECT_TRUE(refused(1, 2, 3));
  EXPECT_TRUE(!refused(5, 0, 2));
  EXPECT_TRUE(refused(6, 1, 3));  // the step has two parts
}

TEST(PartsOfAStepMakeNoneOfThemStale) {
  StepLog log;
  Sums sums(&log);
  for (uint32_t step = 0; step < 6; step += 2) {
    const int64_t seen = log.Count();
    Add(&sums, step, 0, 2, 0, /*worker=*/4, seen);
    Add(&sums, step, 1, 2, 0, /*worker=*/7, seen);
    sums.Applied(step);
  }
  EXPECT_EQ(log.Count(), 6);
  const std::vector<std::array<int64_t, 3>> expected = {{4, 0, 3}, {7, 0, 3}};
  EXPECT_TRUE(log.Staleness() == expected);
}

TEST(WaitEndsWhenAStepIsLoggedAndNotWhenItIsCancelled) {
  StepLog log;
  int begun = 0;
  log.Add(3, 0, 0);
  EXPECT_EQ(log.WhenAdded(3, [&begun] { ++begun; }), -1);
  EXPECT_EQ(begun, 1);
  const int64_t first = log.WhenAdded(4, [&begun] { ++begun; });
  log.WhenAdded(4, [&begun] { begun += 10; });
  log.WhenAdded(5, [&begun] { begun += 100; });
  log.Cancel(first);
  log.Add(4, 0, 0);
  EXPECT_EQ(begun, 11);
}

// Ranks on threads, each with two attempts. Some of those that should apply a step give up first.
TEST(EachStepIsAppliedOnceWhateverManyAttemptsDo) {
  constexpr int kRanks = 4, kSteps = 300;
  StepLog log;
  Sums sums(&log);
  std::array<std::atomic<int>, kSteps> applied{};
  std::atomic<int> wrong{0};
  const auto await = [&log](uint32_t step) {
    std::promise<void> logged;
    log.WhenAdded(step, [&logged] { logged.set_value(); });
    logged.get_future().wait();
  };
  const auto add = [&sums, &wrong](uint32_t step, int rank, int value) {
    std::promise<Sums::Parts> decided;
    int64_t ticket;
    const Status added = sums.Add(
        rank, kRanks, {step + rank, rank, 0}, value,
        [&decided](const Sums::Parts& parts) { decided.set_value(parts); }, &ticket);
    wrong += !added.ok();
    return decided.get_future().get();
  };
  const auto attempt = [&](int rank, int number) {
    for (int k = 0; k < kSteps; ++k) {
      const auto step = static_cast<uint32_t>(k * kRanks);
      if (k > 0) await(step - kRanks);
      const int times = 1 + (k + rank + number) % 3;  // the last one does not give up
      for (int i = 1; i <= times; ++i) {
        const Sums::Parts parts = add(step, rank, k * 10 + rank);
        if (parts.empty()) continue;
        for (int r = 0; r < kRanks; ++r) wrong += *parts[r] != k * 10 + r;
        if (i < times) {
          sums.Abandoned(step);
        } else {
          ++applied[k];
          sums.Applied(step);
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2 * kRanks; ++i) threads.emplace_back(attempt, i % kRanks, i / kRanks);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (const auto& times : applied) EXPECT_EQ(times, 1);
  EXPECT_EQ(log.Count(), kRanks * kSteps);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
