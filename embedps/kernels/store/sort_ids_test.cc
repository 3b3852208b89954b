#include "embedps/kernels/store/sort_ids.h"

#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

TEST(IdsAreSortedAndEachOnceHoweverManyTheyAre) {
  uint64_t random = 1;
  for (const size_t count : {0, 1, 2, 511, 512, 513, 5000}) {
    for (const int bits : {3, 8, 12, 40, 63, 64}) {
      std::vector<int64_t> ids;
      for (size_t i = 0; i < count; ++i) {
        random = Mix64(random);
        ids.push_back(static_cast<int64_t>(random) >> (64 - bits));  // of both signs
        if (i % 7 == 0) ids.push_back(ids[random / 2 % ids.size()]);
      }
      if (count > 2 && bits == 64) {
        ids.push_back(std::numeric_limits<int64_t>::min());
        ids.push_back(std::numeric_limits<int64_t>::max());
        ids.push_back(0);
        ids.push_back(-1);
      }
      const std::set<int64_t> sorted(ids.begin(), ids.end());
      SortIds(&ids);
      EXPECT_TRUE(ids == std::vector<int64_t>(sorted.begin(), sorted.end()));
    }
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
