#include "embedps/kernels/lookup/parts.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

void ThreadsFor(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < n; ++i) threads.emplace_back([&work, i] { work(i, i + 1); });
  for (std::thread& thread : threads) thread.join();
}

// One rank's ids by table, and what it says of each. The vectors are exact, so that a sanitizer
// finds an index beyond them.
struct OwnedPart {
  std::vector<int64_t> ids;
  std::vector<int32_t> splits{0}, examples;
  std::vector<float> gradients;
  std::vector<uint8_t> absent;
};

OwnedPart RandomPart(std::mt19937* random, int num_tables, int dim, int most_ids) {
  OwnedPart part;
  std::uniform_real_distribution<float> value(-1, 1);
  for (int t = 0; t < num_tables; ++t) {
    for (int64_t id = 0; id < most_ids; ++id) {
      if ((*random)() % 2 == 0) part.ids.push_back(id * 7919 - 3 * most_ids);
    }
    std::shuffle(part.ids.begin() + part.splits.back(), part.ids.end(), *random);
    part.splits.push_back(static_cast<int32_t>(part.ids.size()));
  }
  for (size_t i = 0; i < part.ids.size(); ++i) {
    part.examples.push_back(static_cast<int32_t>((*random)() % 5));
    part.absent.push_back((*random)() % 4 == 0 ? 1 : 0);
    for (int d = 0; d < dim; ++d) part.gradients.push_back(value(*random));
  }
  part.ids.shrink_to_fit();
  part.gradients.shrink_to_fit();
  return part;
}

std::vector<RowPart> Views(const std::vector<OwnedPart>& owned) {
  std::vector<RowPart> parts;
  for (const OwnedPart& part : owned) {
    parts.push_back({part.ids.data(), static_cast<int64_t>(part.ids.size()), part.splits.data(),
                     part.gradients.data(), part.examples.data(), part.absent.data()});
  }
  return parts;
}

// Rounds each product and each sum, whatever the compiler would fuse.
float Rounded(float value) {
  volatile float rounded = value;
  return rounded;
}

TEST(PartsMergeInRankOrderByTable) {
  std::mt19937 random(1);
  for (const int num_parts : {1, 2, 3, 5}) {
    for (const int dim : {1, 4, 17}) {
      constexpr int kTables = 3;
      std::vector<OwnedPart> owned;
      std::vector<int64_t> num_examples;
      for (int r = 0; r < num_parts; ++r) {
        // Some tables and parts have nothing.
        owned.push_back(RandomPart(&random, kTables, dim, r == 1 ? 0 : 40));
        num_examples.push_back(10 + 7 * r);
      }
      const std::vector<RowPart> parts = Views(owned);
      const std::vector<float> weights = PartWeights(num_examples);
      std::vector<int64_t> ids;
      std::vector<int32_t> splits{0}, examples;
      std::vector<float> sums;
      std::vector<uint8_t> absent;
      for (int t = 0; t < kTables; ++t) {
        std::map<int64_t, size_t> at;
        for (int r = 0; r < num_parts; ++r) {
          for (int32_t i = owned[r].splits[t]; i < owned[r].splits[t + 1]; ++i) {
            const auto [found, is_new] = at.emplace(owned[r].ids[i], ids.size());
            if (is_new) {
              ids.push_back(owned[r].ids[i]);
              examples.push_back(0);
              absent.push_back(0);
              sums.resize(sums.size() + dim);
            }
            examples[found->second] += owned[r].examples[i];
            absent[found->second] |= owned[r].absent[i];
            for (int d = 0; d < dim; ++d) {
              float* sum = &sums[found->second * dim + d];
              *sum = Rounded(*sum + Rounded(weights[r] * owned[r].gradients[i * dim + d]));
            }
          }
        }
        splits.push_back(static_cast<int32_t>(ids.size()));
      }
      for (const ParallelFor& parallel : {ParallelFor(SerialFor), ParallelFor(ThreadsFor)}) {
        const MergedIds merged = MergeIds(parts, kTables, parallel);
        EXPECT_EQ(merged.ids, ids);
        EXPECT_EQ(merged.splits, splits);
        std::vector<float> found(sums.size(), 9);
        SumRows(parts, weights, merged, dim, parallel, found.data());
        EXPECT_EQ(found, sums);
        std::vector<int32_t> found_examples(ids.size());
        std::vector<uint8_t> found_absent(ids.size());
        SumCounts(parts, merged, found_examples.data(), found_absent.data());
        EXPECT_EQ(found_examples, examples);
        EXPECT_TRUE(found_absent == absent);
      }
    }
  }
}

TEST(OnePartStaysAsItIs) {
  std::mt19937 random(2);
  const std::vector<OwnedPart> owned = {RandomPart(&random, 2, 3, 20)};
  const std::vector<RowPart> parts = Views(owned);
  const MergedIds merged = MergeIds(parts, 2, SerialFor);
  std::vector<float> sums(owned[0].gradients.size());
  SumRows(parts, PartWeights({7}), merged, 3, SerialFor, sums.data());
  EXPECT_EQ(merged.ids, owned[0].ids);
  EXPECT_EQ(merged.splits, owned[0].splits);
  EXPECT_EQ(sums, owned[0].gradients);
}

TEST(DenseValuesAreSummedInRankOrder) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> value(-1, 1);
  constexpr int64_t kValues = 37;
  const std::vector<float> weights = PartWeights({5, 3, 2});
  std::vector<std::vector<float>> values(3, std::vector<float>(kValues));
  std::vector<const float*> parts;
  for (std::vector<float>& part : values) {
    for (float& v : part) v = value(random);
    parts.push_back(part.data());
  }
  std::vector<float> expected(kValues), sums(kValues, 9);
  for (int r = 0; r < 3; ++r) {
    for (int64_t i = 0; i < kValues; ++i) {
      expected[i] = Rounded(expected[i] + Rounded(weights[r] * values[r][i]));
    }
  }
  SumDense(parts, weights, kValues, ThreadsFor, sums.data());
  EXPECT_EQ(sums, expected);
}

TEST(WeightsAreSharesOfTheExamples) {
  EXPECT_EQ(PartWeights({1, 3}), (std::vector<float>{0.25f, 0.75f}));
  EXPECT_EQ(PartWeights({5, 3, 2}), (std::vector<float>{5.0f / 10, 3.0f / 10, 2.0f / 10}));
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
