#include "embedps/kernels/lookup/id_lists.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

// The lists one after the other, and their splits. The vectors are exact, so that a sanitizer finds
// an index beyond them.
struct Flat {
  std::vector<int64_t> ids;
  std::vector<int64_t> splits{0};
};

Flat Flatten(const Lists& lists) {
  Flat flat;
  for (const auto& list : lists) {
    flat.ids.insert(flat.ids.end(), list.begin(), list.end());
    flat.splits.push_back(static_cast<int64_t>(flat.ids.size()));
  }
  flat.ids.shrink_to_fit();
  flat.splits.shrink_to_fit();
  return flat;
}

Flat Cut(const Flat& flat, int64_t max_length) {
  const auto num_lists = static_cast<int64_t>(flat.splits.size()) - 1;
  Flat cut;
  cut.splits.resize(flat.splits.size());
  cut.ids.resize(CutSplits(flat.splits.data(), num_lists, max_length, cut.splits.data()));
  KeepLast(flat.ids.data(), flat.splits.data(), num_lists, cut.splits.data(), cut.ids.data());
  return cut;
}

TEST(LastIdsRemain) {
  const Flat cut = Cut(Flatten({{1, 2, 3, 4}, {}, {5}, {6, 7}, {8, 9, 10}}), 2);
  EXPECT_EQ(cut.ids, (std::vector<int64_t>{3, 4, 5, 6, 7, 9, 10}));
  EXPECT_EQ(cut.splits, (std::vector<int64_t>{0, 2, 2, 3, 5, 7}));
}

TEST(CutListsEqualVectors) {
  std::mt19937_64 random(7);
  for (const int64_t max_length : {1, 2, 5, 100}) {
    for (const int num_lists : {0, 1, 37}) {
      Lists lists(num_lists), expected(num_lists);
      for (int i = 0; i < num_lists; ++i) {
        lists[i].resize(random() % 9);
        for (int64_t& id : lists[i]) id = static_cast<int64_t>(random());
        const auto n = static_cast<int64_t>(lists[i].size());
        expected[i].assign(lists[i].end() - std::min(n, max_length), lists[i].end());
      }
      const Flat cut = Cut(Flatten(lists), max_length), wanted = Flatten(expected);
      EXPECT_EQ(cut.ids, wanted.ids);
      EXPECT_EQ(cut.splits, wanted.splits);
    }
  }
}

TEST(SplitsMustRiseFromZeroToTheNumberOfIds) {
  const auto check = [](const std::vector<int64_t>& splits, int64_t num_ids) {
    return CheckSplits("feature 3", splits.data(), static_cast<int64_t>(splits.size()), num_ids);
  };
  EXPECT_OK(check({0}, 0));
  EXPECT_OK(check({0, 0, 2, 2}, 2));
  const std::vector<std::vector<int64_t>> wrong{{}, {1, 2}, {0, 1}, {0, 3, 2}, {0, -1, 2}};
  for (const auto& splits : wrong) {
    EXPECT_STATUS(check(splits, 2), StatusCode::kInvalidArgument,
                  "feature 3: row_splits must rise from 0 to 2, the number of ids");
  }
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
