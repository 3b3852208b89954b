#include "embedps/kernels/runtime/step_groups.h"

#include <cstdint>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using Numbers = std::vector<int64_t>;

// What a call got: no index yet as long as it waits.
struct Answer {
  int64_t index = -2;
  Numbers parts;
};

StepGroups::Closed Into(Answer* answer) {
  return [answer](const StepGroups::Group& group) { *answer = {group.index, group.parts}; };
}

Answer Join(StepGroups* groups, uint32_t number, int64_t worker, int64_t seen) {
  Answer answer;
  EXPECT_EQ(groups->Join(number, worker, seen, Into(&answer)), -1);
  return answer;
}

TEST(GroupClosesWithItsLastFreshPartAndALatePartIsInTheNext) {
  StepLog log;
  StepGroups groups(&log);
  for (int64_t worker = 0; worker < 3; ++worker) EXPECT_EQ(groups.Enter(worker, 1), 0);
  Answer first, second, third;
  EXPECT_TRUE(groups.Join(20, 0, 0, Into(&first)) >= 0);
  EXPECT_EQ(first.index, -2);
  groups.Join(10, 1, 0, Into(&second));
  EXPECT_EQ(first.index, 0);
  EXPECT_EQ(first.parts, Numbers({10, 20}));  // by number
  EXPECT_EQ(second.parts, first.parts);
  const Answer late = Join(&groups, 30, 2, 0);  // read before the group closed
  EXPECT_EQ(late.index, 0);
  EXPECT_EQ(late.parts, Numbers({}));
  groups.Join(21, 0, 2, Into(&first));
  EXPECT_EQ(first.index, 0);  // the late part does not count
  EXPECT_EQ(groups.Awaited(), Numbers({1, 2}));
  groups.Join(31, 2, 2, Into(&third));
  EXPECT_EQ(third.index, 1);
  EXPECT_EQ(third.parts, Numbers({21, 30, 31}));
  EXPECT_EQ(groups.Last().size(), 3u);  // with the open one
}

TEST(GroupWaitsForNoMoreWorkersThanThereAre) {
  StepLog log;
  StepGroups groups(&log);
  groups.Enter(0, 0);
  Answer alone, first, second;
  groups.Join(1, 0, 0, Into(&alone));
  EXPECT_EQ(alone.parts, Numbers({1}));
  EXPECT_EQ(groups.Enter(1, 0), 1);
  groups.Join(2, 0, 1, Into(&first));
  EXPECT_EQ(first.index, -2);
  groups.Leave(1);
  EXPECT_EQ(first.parts, Numbers({2}));
  groups.Enter(1, 0);
  groups.Join(3, 0, 2, Into(&second));
  EXPECT_EQ(second.index, -2);
  groups.Forget(1);  // it hangs
  EXPECT_EQ(second.parts, Numbers({3}));
  EXPECT_EQ(Join(&groups, 9, 1, 2).index, 2);  // it is back, late
  EXPECT_EQ(groups.Awaited(), Numbers({}));    // nobody waits yet
  groups.Join(4, 0, 3, Into(&first));
  EXPECT_EQ(first.index, 1);  // and waited for again
  EXPECT_EQ(groups.Awaited(), Numbers({1}));
  groups.Forget(1);
  EXPECT_EQ(groups.Awaited(), Numbers({}));
}

TEST(GroupDoesNotWaitForTheSlowestOfThoseThatAreThere) {
  StepLog log;
  StepGroups groups(&log);
  for (int64_t worker = 0; worker < 3; ++worker) groups.Enter(worker, 1);
  Answer first, second;
  groups.Join(1, 0, 0, Into(&first));
  EXPECT_EQ(first.index, -2);
  groups.Leave(1);  // its unit ends: of the other two, worker 2 is the slowest
  EXPECT_EQ(first.parts, Numbers({1}));
  groups.Enter(1, 1);
  groups.Join(2, 0, 1, Into(&first));
  groups.Join(3, 1, 1, Into(&second));
  EXPECT_EQ(second.parts, Numbers({2, 3}));
}

TEST(LastWorkerThatLeavesClosesWhatIsLateAndAwaitsIt) {
  StepLog log;
  StepGroups groups(&log);
  groups.Enter(0, 1);
  groups.Enter(1, 1);
  Answer fresh, last;
  groups.Join(1, 0, 0, Into(&fresh));
  EXPECT_EQ(Join(&groups, 2, 1, 0).index, 0);
  groups.Leave(0);
  EXPECT_TRUE(groups.Await(2, Into(&last)) >= 0);
  groups.Leave(1);
  EXPECT_EQ(last.index, 1);
  EXPECT_EQ(last.parts, Numbers({2}));
  Answer again;
  EXPECT_EQ(groups.Await(1, Into(&again)), -1);
  EXPECT_EQ(again.index, 0);
  EXPECT_EQ(again.parts, Numbers({1}));
  groups.Await(77, Into(&again));
  EXPECT_EQ(again.index, -1);
}

TEST(PartThatJoinedOrWasAppliedChangesNothing) {
  StepLog log;
  StepGroups groups(&log);
  groups.Enter(0, 0);
  groups.Enter(1, 0);
  Answer first, second;
  groups.Join(1, 0, 0, Into(&first));
  EXPECT_EQ(Join(&groups, 1, 1, 0).index, -1);  // another attempt, which must not wait
  EXPECT_EQ(first.index, -2);
  log.Add(8, 0, 0);
  EXPECT_EQ(Join(&groups, 8, 1, 0).index, -1);
  groups.Join(2, 1, 0, Into(&second));
  EXPECT_EQ(first.parts, Numbers({1, 2}));
}

TEST(WaitThatIsCancelledLeavesThePart) {
  StepLog log;
  StepGroups groups(&log);
  groups.Enter(0, 0);
  groups.Enter(1, 0);
  Answer first, second;
  groups.Cancel(groups.Join(1, 0, 0, Into(&first)));
  groups.Join(2, 1, 0, Into(&second));
  EXPECT_EQ(first.index, -2);
  EXPECT_EQ(second.parts, Numbers({1, 2}));
}

TEST(AnAttemptThatOutlivesTheNextOnesStartDoesNotTakeItOut) {
  StepLog log;
  StepGroups groups(&log);
  groups.Enter(0, 0);
  groups.Enter(1, 0);
  groups.Enter(1, 0);  // its next unit, while the last one's attempt is being cancelled
  groups.Leave(1);
  Answer first;
  groups.Join(1, 0, 0, Into(&first));
  EXPECT_EQ(first.index, -2);
  groups.Leave(1);
  EXPECT_EQ(first.index, 0);
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
