#include "embedps/kernels/dense/ranks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

// The definition: sums in the same order as the kernel's, in plain loops.
float Dot(int dim, const float* a, const float* b) {
  float sum = 0;
  for (int d = 0; d < dim; ++d) sum = std::fma(a[d], b[d], sum);
  return sum;
}

struct Case {
  int dim;
  std::vector<float> queries, candidates;
  std::vector<int64_t> wanted, wanted_splits, seen, seen_splits;

  RankInputs inputs() const {
    const int64_t count = dim == 0 ? 0 : static_cast<int64_t>(candidates.size()) / dim;
    return {dim,
            queries.data(),
            candidates.data(),
            count,
            {wanted.data(), wanted_splits.data()},
            {seen.data(), seen_splits.data()}};
  }
};

// Small integers as floats: sums are exact in any order, and many scores are equal.
Case MakeCase(int dim, int queries, int candidates) {
  Case made;
  made.dim = dim;
  uint32_t state = 7;
  const auto next = [&state](uint32_t n) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % n;
  };
  for (int i = 0; i < queries * dim; ++i) made.queries.push_back(static_cast<float>(next(5)) - 2);
  for (int i = 0; i < candidates * dim; ++i) {
    made.candidates.push_back(static_cast<float>(next(5)) - 2);
  }
  for (int q = 0; q < queries; ++q) {
    made.wanted_splits.push_back(static_cast<int64_t>(made.wanted.size()));
    made.seen_splits.push_back(static_cast<int64_t>(made.seen.size()));
    for (uint32_t n = next(4); n > 0; --n) made.wanted.push_back(int64_t{next(candidates + 1)} - 1);
    for (uint32_t n = next(90); n > 0; --n) made.seen.push_back(int64_t{next(candidates + 1)} - 1);
  }
  made.wanted_splits.push_back(static_cast<int64_t>(made.wanted.size()));
  made.seen_splits.push_back(static_cast<int64_t>(made.seen.size()));
  return made;
}

int64_t PlainRank(const RankInputs& in, int64_t q, int64_t wanted) {
  if (wanted < 0) return in.num_candidates;
  const float* query = in.queries + q * in.dim;
  const float own = Dot(in.dim, query, in.candidates + wanted * in.dim);
  const int64_t* first = in.seen.values + in.seen.splits[q];
  const int64_t* last = in.seen.values + in.seen.splits[q + 1];
  int64_t rank = 0;
  for (int64_t c = 0; c < in.num_candidates; ++c) {
    if (c == wanted || std::find(first, last, c) != last) continue;
    const float score = Dot(in.dim, query, in.candidates + c * in.dim);
    rank += score > own || (score == own && c < wanted);
  }
  return rank;
}

TEST(RanksEqualThoseOfPlainLoops) {
  for (const int dim : {1, 3, 16, 64}) {
    for (const int candidates : {1, 63, 64, 65, 300}) {
      const Case made = MakeCase(dim, 11, candidates);
      const RankInputs in = made.inputs();
      std::vector<int64_t> ranks(made.wanted.size());
      CountRanks(in, 0, 4, ranks.data());  // two ranges, as with two threads
      CountRanks(in, 4, 11, ranks.data());
      CountRanks(in, 11, 11, ranks.data());
      for (int64_t q = 0; q < 11; ++q) {
        for (int64_t at = made.wanted_splits[q]; at < made.wanted_splits[q + 1]; ++at) {
          EXPECT_EQ(ranks[at], PlainRank(in, q, made.wanted[at]));
        }
      }
    }
  }
}

TEST(EqualCandidatesHaveTheOrderOfTheirPlaces) {
  // A vector whose sums depend on their order, 130 times: across blocks and within one.
  Case made;
  made.dim = 5;
  made.queries = {0.1f, 1e7f, -1e7f, 0.3f, 0.7f};
  for (int i = 0; i < 130; ++i) {
    made.candidates.insert(made.candidates.end(), {0.3f, 1.7f, 1.7f, 1e-3f, 0.11f});
  }
  for (int64_t i = 0; i < 130; ++i) made.wanted.push_back(i);
  made.wanted_splits = {0, 130};
  made.seen = {0, 64, 64, 129};
  made.seen_splits = {0, 4};
  std::vector<int64_t> ranks(130);
  CountRanks(made.inputs(), 0, 1, ranks.data());
  for (int64_t i = 0; i < 130; ++i) EXPECT_EQ(ranks[i], i - (i > 0) - (i > 64) - (i > 129));
}

TEST(ScoreThatIsNoNumberRanksLast) {
  Case made;
  made.dim = 1;
  made.queries = {1.0f};
  made.candidates = {NAN, 2.0f, INFINITY, -INFINITY};
  made.wanted = {0, 1, 2, 3, -1};
  made.wanted_splits = {0, 5};
  made.seen_splits = {0, 0};
  std::vector<int64_t> ranks(5);
  CountRanks(made.inputs(), 0, 1, ranks.data());
  EXPECT_EQ(ranks, (std::vector<int64_t>{4, 1, 0, 2, 4}));
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
