#include "embedps/kernels/lookup/router.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/lookup/combiner.h"
#include "embedps/kernels/lookup/id_numbers.h"
#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/testing/chosen_ids.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

void ThreadsFor(int64_t n, int64_t, const std::function<void(int64_t, int64_t)>& work) {
  constexpr int64_t kThreads = 4;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < kThreads; ++i) {
    const int64_t begin = n * i / kThreads, end = n * (i + 1) / kThreads;
    if (begin < end) threads.emplace_back([&work, begin, end] { work(begin, end); });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Routed {
  std::vector<ShardRequest> requests;
  std::vector<std::vector<int32_t>> positions;
};

Routed RouteIds(const std::vector<std::string>& tables, int num_shards,
                const std::vector<std::vector<int64_t>>& ids, const std::vector<int>& of_table,
                const ParallelFor& parallel) {
  Routed routed;
  std::vector<FeatureIds> features(ids.size());
  for (const auto& list : ids) routed.positions.emplace_back(list.size(), -7);
  for (size_t f = 0; f < ids.size(); ++f) {
    features[f].ids = ids[f].data();
    features[f].num_ids = static_cast<int64_t>(ids[f].size());
    features[f].table = of_table[f];
    features[f].positions = routed.positions[f].data();
  }
  routed.requests = Route(tables, num_shards, features, {}, parallel);
  return routed;
}

// A reference by maps: for each shard and table, the ids in order of first appearance.
Routed ReferenceRoute(const std::vector<std::string>& tables, int num_shards,
                      const std::vector<std::vector<int64_t>>& ids,
                      const std::vector<int>& of_table) {
  Routed routed;
  std::map<std::pair<int, int64_t>, int32_t> position;
  for (int s = 0; s < num_shards; ++s) {
    ShardRequest request;
    request.splits.push_back(0);
    for (int t = 0; t < static_cast<int>(tables.size()); ++t) {
      for (size_t f = 0; f < ids.size(); ++f) {
        if (of_table[f] != t) continue;
        for (const int64_t id : ids[f]) {
          if (ShardOf(RowHash(TableSalt(tables[t]), id), num_shards) != s) continue;
          if (position.emplace(std::make_pair(t, id), static_cast<int32_t>(position.size()))
                  .second) {
            request.ids.push_back(id);
          }
        }
      }
      request.splits.push_back(static_cast<int32_t>(request.ids.size()));
    }
    routed.requests.push_back(request);
  }
  for (size_t f = 0; f < ids.size(); ++f) {
    routed.positions.emplace_back();
    for (const int64_t id : ids[f]) routed.positions[f].push_back(position.at({of_table[f], id}));
  }
  return routed;
}

void ExpectSame(const Routed& found, const Routed& expected) {
  EXPECT_EQ(found.positions, expected.positions);
  EXPECT_EQ(found.requests.size(), expected.requests.size());
  for (size_t s = 0; s < expected.requests.size(); ++s) {
    EXPECT_EQ(found.requests[s].ids, expected.requests[s].ids);
    EXPECT_EQ(found.requests[s].splits, expected.requests[s].splits);
  }
}

TEST(RoutingEqualsMaps) {
  std::mt19937_64 random(3);
  const std::vector<std::string> tables{"C1", "C2", "unused", "C4"};
  const std::vector<int> of_table{0, 3, 0, 1, 3, 0};
  for (const int num_shards : {1, 2, 5, 16}) {
    std::vector<std::vector<int64_t>> ids(of_table.size());
    for (size_t f = 0; f < ids.size(); ++f) {
      const size_t n = f == 3 ? 0 : 500 * f + 1;
      while (ids[f].size() < n) {
        const int64_t small = static_cast<int64_t>(random() % 700) - 1;
        ids[f].push_back(random() % 4 == 0 ? std::numeric_limits<int64_t>::min() + small + 1
                                           : small);
      }
    }
    ids[0].push_back(std::numeric_limits<int64_t>::max());
    const Routed expected = ReferenceRoute(tables, num_shards, ids, of_table);
    ExpectSame(RouteIds(tables, num_shards, ids, of_table, SerialFor), expected);
    ExpectSame(RouteIds(tables, num_shards, ids, of_table, ThreadsFor), expected);
  }
}

TEST(RoutingNothingAsksNothing) {
  const Routed routed = RouteIds({"C1"}, 3, {{}}, {0}, SerialFor);
  EXPECT_EQ(routed.requests.size(), size_t{3});
  for (const ShardRequest& request : routed.requests) {
    EXPECT_TRUE(request.ids.empty());
    EXPECT_EQ(request.splits, (std::vector<int32_t>{0, 0}));
  }
}

TEST(ShardsShareIdsEvenly) {
  // Consecutive ids, ids with a stride, and hashes. The bound is four standard deviations of a
  // binomial.
  for (const int num_shards : {2, 3, 7}) {
    for (const int64_t stride : {int64_t{1}, int64_t{64}, int64_t{1} << 32}) {
      std::vector<int64_t> count(num_shards);
      constexpr int64_t kIds = 20000;
      const uint64_t salt = TableSalt("C7");
      for (int64_t i = 0; i < kIds; ++i) ++count[ShardOf(RowHash(salt, i * stride), num_shards)];
      const double p = 1.0 / num_shards;
      for (const int64_t n : count) {
        EXPECT_NEAR(static_cast<double>(n), kIds * p, 4 * std::sqrt(kIds * p * (1 - p)));
      }
    }
  }
}

// Features of two tables over eight rows. The ragged ones have empty examples.
struct Combining {
  static constexpr int kDim = 5;
  std::vector<std::vector<int32_t>> positions{{0, 2, 1, 1}, {3, 0, 0, 2, 1}, {4, 7, 5, 5, 6, 4}};
  std::vector<std::vector<int64_t>> splits{{}, {0, 0, 3, 3, 5}, {0, 1, 6, 6, 6}};
  std::vector<int> of_table{0, 0, 1};
  std::vector<float> rows;
  std::vector<const float*> row_at;

  Combining() {
    for (int i = 0; i < 8 * kDim; ++i) rows.push_back(std::sin(static_cast<float>(i)));
    for (int i = 0; i < 8; ++i) row_at.push_back(&rows[i * kDim]);
  }
  std::vector<FeaturePositions> Features(Combiner combiner) const {
    std::vector<FeaturePositions> features(positions.size());
    for (size_t f = 0; f < features.size(); ++f) {
      features[f].positions = positions[f].data();
      features[f].num_positions = static_cast<int64_t>(positions[f].size());
      features[f].splits = splits[f].empty() ? nullptr : splits[f].data();
      features[f].batch = 4;
      features[f].combiner = combiner;
      features[f].table = of_table[f];
    }
    return features;
  }
};

double Weight(Combiner combiner, int64_t n) {
  if (combiner == Combiner::kMean) return 1.0 / static_cast<double>(n);
  return combiner == Combiner::kSqrtn ? 1 / std::sqrt(static_cast<double>(n)) : 1;
}

TEST(CombinersAndTheirGradientsEqualDoubles) {
  const Combining c;
  constexpr int kDim = Combining::kDim;
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    const std::vector<FeaturePositions> features = c.Features(combiner);
    std::vector<float> upstream(features.size() * 4 * kDim);
    for (size_t i = 0; i < upstream.size(); ++i) upstream[i] = std::cos(static_cast<float>(i));
    std::vector<const float*> upstream_of;
    std::vector<std::vector<double>> expected_of;
    std::vector<double> expected_gradient(8 * kDim);
    for (size_t f = 0; f < features.size(); ++f) {
      upstream_of.push_back(&upstream[f * 4 * kDim]);
      std::vector<double> expected(4 * kDim);
      for (int b = 0; b < 4; ++b) {
        const int64_t first = c.splits[f].empty() ? b : c.splits[f][b];
        const int64_t last = c.splits[f].empty() ? b + 1 : c.splits[f][b + 1];
        for (int64_t i = first; i < last; ++i) {
          const double weight = Weight(combiner, last - first);
          for (int d = 0; d < kDim; ++d) {
            const int32_t row = c.positions[f][i];
            expected[b * kDim + d] += weight * c.rows[row * kDim + d];
            expected_gradient[row * kDim + d] += weight * upstream_of[f][b * kDim + d];
          }
        }
      }
      expected_of.push_back(expected);
    }
    std::vector<std::vector<float>> combined(features.size(), std::vector<float>(4 * kDim, 9));
    std::vector<std::vector<float>> by_threads = combined;
    std::vector<float*> combined_at, by_threads_at;
    for (size_t f = 0; f < features.size(); ++f) {
      combined_at.push_back(combined[f].data());
      by_threads_at.push_back(by_threads[f].data());
    }
    Combine(features, c.row_at, kDim, SerialFor, combined_at);
    Combine(features, c.row_at, kDim, ThreadsFor, by_threads_at);
    for (size_t f = 0; f < features.size(); ++f) {
      EXPECT_EQ(combined[f], by_threads[f]);
      for (int i = 0; i < 4 * kDim; ++i) EXPECT_NEAR(combined[f][i], expected_of[f][i], 1e-6);
    }
    std::vector<float> serial(8 * kDim), threaded(8 * kDim);
    std::vector<float*> serial_at, threaded_at;
    for (int i = 0; i < 8; ++i) {
      serial_at.push_back(&serial[i * kDim]);
      threaded_at.push_back(&threaded[i * kDim]);
    }
    CombineGradient(features, upstream_of, kDim, 2, SerialFor, serial_at);
    CombineGradient(features, upstream_of, kDim, 2, ThreadsFor, threaded_at);
    EXPECT_EQ(serial, threaded);
    for (size_t i = 0; i < serial.size(); ++i) EXPECT_NEAR(serial[i], expected_gradient[i], 1e-6);
  }
}

// The first feature has one id per example; the others are padded.
TEST(PaddedRowsAndTheirGradientsEqualLoops) {
  const Combining c;
  constexpr int kDim = Combining::kDim;
  std::vector<FeaturePositions> features = c.Features(Combiner::kNone);
  features[1].length = 3;
  features[2].length = 7;
  std::vector<std::vector<float>> expected, found, threaded, upstream;
  std::vector<float> expected_gradient(8 * kDim);
  for (size_t f = 0; f < features.size(); ++f) {
    const int64_t length = features[f].length;
    expected.emplace_back(4 * length * kDim, 0.0f);
    found.emplace_back(4 * length * kDim, 9.0f);
    upstream.emplace_back();
    for (int64_t i = 0; i < 4 * length * kDim; ++i) {
      upstream[f].push_back(static_cast<float>(i % 11));  // exact in any order of sums
    }
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t first = c.splits[f].empty() ? b : c.splits[f][b];
      const int64_t last = c.splits[f].empty() ? b + 1 : c.splits[f][b + 1];
      for (int64_t i = first; i < last; ++i) {
        for (int d = 0; d < kDim; ++d) {
          const int64_t at = (b * length + i - first) * kDim + d;
          expected[f][at] = c.rows[c.positions[f][i] * kDim + d];
          expected_gradient[c.positions[f][i] * kDim + d] += upstream[f][at];
        }
      }
    }
  }
  threaded = found;
  std::vector<float*> found_at, threaded_at, serial_gradient_at, threaded_gradient_at;
  std::vector<const float*> upstream_of;
  for (size_t f = 0; f < features.size(); ++f) {
    found_at.push_back(found[f].data());
    threaded_at.push_back(threaded[f].data());
    upstream_of.push_back(upstream[f].data());
  }
  Combine(features, c.row_at, kDim, SerialFor, found_at);
  Combine(features, c.row_at, kDim, ThreadsFor, threaded_at);
  std::vector<float> serial_gradient(8 * kDim), threaded_gradient(8 * kDim);
  for (int i = 0; i < 8; ++i) {
    serial_gradient_at.push_back(&serial_gradient[i * kDim]);
    threaded_gradient_at.push_back(&threaded_gradient[i * kDim]);
  }
  CombineGradient(features, upstream_of, kDim, 2, SerialFor, serial_gradient_at);
  CombineGradient(features, upstream_of, kDim, 2, ThreadsFor, threaded_gradient_at);
  for (size_t f = 0; f < features.size(); ++f) {
    EXPECT_EQ(found[f], expected[f]);
    EXPECT_EQ(threaded[f], expected[f]);
  }
  EXPECT_EQ(serial_gradient, expected_gradient);
  EXPECT_EQ(threaded_gradient, expected_gradient);
}

TEST(UnknownCombinerIsNamed) {
  Combiner combiner;
  EXPECT_STATUS(ParseCombiner("max", &combiner), StatusCode::kInvalidArgument,
                "combiner must be sum, mean, sqrtn or none but got 'max'");
}

TEST(ExamplesOfAnIdAreCountedOnceOverTheFeaturesOfItsTable) {
  // Features 0 (lists) and 1 (one id per example) are of table 0, feature 2 is of table 1.
  const std::vector<std::vector<int64_t>> ids = {{7, 7, 8, 7}, {8, 7, 9}, {7, 7, 7}};
  const std::vector<int64_t> splits = {0, 3, 3, 4};  // {7, 7, 8}, {}, {7}
  const std::vector<std::map<int64_t, int32_t>> expected = {{{7, 3}, {8, 1}, {9, 1}}, {{7, 0}}};
  for (const int num_shards : {1, 3}) {
    std::vector<std::vector<int32_t>> positions = {{0, 0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
    std::vector<FeatureIds> features(3);
    for (int f = 0; f < 3; ++f) {
      features[f].ids = ids[f].data();
      features[f].num_ids = static_cast<int64_t>(ids[f].size());
      features[f].table = f == 2 ? 1 : 0;
      features[f].positions = positions[f].data();
      features[f].num_examples = 3;
    }
    features[0].row_splits = splits.data();
    const std::vector<ShardRequest> requests =
        Route({"a", "b"}, num_shards, features, {true, false}, SerialFor);
    std::vector<std::map<int64_t, int32_t>> found(2);
    for (const ShardRequest& request : requests) {
      EXPECT_EQ(request.examples.size(), request.ids.size());
      for (int t = 0; t < 2; ++t) {
        for (int32_t i = request.splits[t]; i < request.splits[t + 1]; ++i) {
          found[t][request.ids[i]] = request.examples[i];
        }
      }
    }
    EXPECT_TRUE(found == expected);
    EXPECT_TRUE(Route({"a", "b"}, num_shards, features, {}, SerialFor)[0].examples.empty());
  }
}

TEST(IdsChosenToShareBitsOfTheirHashesAreFoundAsQuicklyAsOthers) {
  constexpr int64_t kIds = 1 << 18;
  const std::vector<int64_t> chosen = testing::ChosenIds(TableSalt("a"), kIds);
  IdNumbers numbers(kIds);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kIds; ++i) EXPECT_EQ(numbers.Add(chosen[i], &ids), i);
  for (int64_t i = 0; i < kIds; i += 1001) EXPECT_EQ(numbers.Add(chosen[i], &ids), i);
  EXPECT_TRUE(ids == chosen);
  // Random ids at this load need some 70. By RowHash it would be all of them.
  EXPECT_TRUE(numbers.MostProbes() < 300);
}

}  // namespace
}  // namespace embedps

int main(int argc, char** argv) { return embedps::testing::RunAllTests(argc, argv); }
