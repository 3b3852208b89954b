#include "embedps/kernels/dense/ranks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

constexpr int kWidth = 64;   // candidates in a block
constexpr int kQueries = 4;  // scored at once: 16 registers of sums

typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int kLanes = sizeof(Floats) / sizeof(float);
constexpr int kVectors = kWidth / kLanes;

// Scores kQueries queries against a block [dim][kWidth]. Every score comes from here, with one
// order of sums, so that equal vectors have equal scores.
EMBEDPS_SIMD void Score(int dim, const float* const* queries, const float* block, float* scores) {
  Floats sums[kQueries][kVectors] = {};
  for (int d = 0; d < dim; ++d) {
    const Floats* column = reinterpret_cast<const Floats*>(block + d * kWidth);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const float x = queries[q][d];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[q][v] += x * column[v];
    }
  }
  std::memcpy(scores, sums, sizeof(sums));
}

// Counts the scores above a bound, or with `ties` those not below it.
EMBEDPS_SIMD int CountAbove(const float* __restrict scores, float bound, bool ties) {
  int above = 0;
  if (ties) {
    for (int i = 0; i < kWidth; ++i) above += scores[i] >= bound;
  } else {
    for (int i = 0; i < kWidth; ++i) above += scores[i] > bound;
  }
  return above;
}

// Makes a block of candidates: those at `places`, or the ones from `first`. Sets the rest to zero.
void Pack(const RankInputs& in, const int64_t* places, int64_t first, int count, float* block) {
  std::memset(block, 0, sizeof(float) * kWidth * in.dim);
  for (int i = 0; i < count; ++i) {
    const float* row = in.candidates + (places ? places[i] : first + i) * in.dim;
    for (int d = 0; d < in.dim; ++d) block[d * kWidth + i] = row[d];
  }
}

bool Outranks(float score, int64_t place, float bound, int64_t wanted) {
  return place != wanted && (score > bound || (score == bound && place < wanted));
}

struct Wanted {
  int64_t place;
  float score;
  int64_t* rank;
};

class Ranker {
 public:
  explicit Ranker(const RankInputs& in) : in_(in), block_(kWidth * in.dim) {}

  // Ranks the wanted candidates of queries [first, end).
  void Run(int64_t first, int64_t end, int64_t* ranks) {
    for (int64_t q = first; q < end; ++q) StartQuery(q, ranks);
    float scores[kQueries][kWidth];
    for (int64_t from = 0; from < in_.num_candidates; from += kWidth) {
      const int count = static_cast<int>(std::min<int64_t>(kWidth, in_.num_candidates - from));
      Pack(in_, nullptr, from, count, block_.data());
      for (int64_t q = first; q < end; q += kQueries) {
        const float* queries[kQueries];
        for (int i = 0; i < kQueries; ++i) queries[i] = Query(std::min(q + i, end - 1));
        Score(in_.dim, queries, block_.data(), scores[0]);
        for (int i = 0; i < kQueries && q + i < end; ++i) {
          for (int k = count; k < kWidth; ++k) scores[i][k] = NAN;  // outranks nothing
          for (const Wanted& wanted : wanted_[q + i - first]) Count(scores[i], from, count, wanted);
        }
      }
    }
    wanted_.clear();
  }

 private:
  const float* Query(int64_t q) const { return in_.queries + q * in_.dim; }

  // Scores candidates at places for one query, kWidth at a time: calls use(place, score).
  template <typename Use>
  void ScorePlaces(int64_t q, const std::vector<int64_t>& places, const Use& use) {
    const float* queries[kQueries] = {Query(q), Query(q), Query(q), Query(q)};
    float scores[kQueries][kWidth];
    for (size_t at = 0; at < places.size(); at += kWidth) {
      const int count = static_cast<int>(std::min<size_t>(kWidth, places.size() - at));
      Pack(in_, &places[at], 0, count, block_.data());
      Score(in_.dim, queries, block_.data(), scores[0]);
      for (int i = 0; i < count; ++i) use(at + i, scores[0][i]);
    }
  }

  static std::vector<int64_t> Known(const Lists& lists, int64_t i) {
    std::vector<int64_t> known;
    for (int64_t at = lists.splits[i]; at < lists.splits[i + 1]; ++at) {
      if (lists.values[at] >= 0) known.push_back(lists.values[at]);
    }
    return known;
  }

  // Sets the ranks to minus the number of seen candidates that would count.
  void StartQuery(int64_t q, int64_t* ranks) {
    std::vector<Wanted>& wanted = wanted_.emplace_back();
    for (int64_t at = in_.wanted.splits[q]; at < in_.wanted.splits[q + 1]; ++at) {
      ranks[at] = in_.num_candidates;
      if (in_.wanted.values[at] >= 0) wanted.push_back({in_.wanted.values[at], 0, ranks + at});
    }
    const std::vector<int64_t> places = Known(in_.wanted, q);
    ScorePlaces(q, places, [&](size_t i, float score) { wanted[i].score = score; });
    wanted.erase(std::remove_if(wanted.begin(), wanted.end(),
                                [](const Wanted& w) { return std::isnan(w.score); }),
                 wanted.end());
    for (const Wanted& w : wanted) *w.rank = 0;
    std::vector<int64_t> seen = Known(in_.seen, q);
    std::sort(seen.begin(), seen.end());
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    ScorePlaces(q, seen, [&](size_t i, float score) {
      for (const Wanted& w : wanted) *w.rank -= Outranks(score, seen[i], w.score, w.place);
    });
  }

  static void Count(const float* scores, int64_t from, int count, const Wanted& wanted) {
    if (wanted.place < from) {
      *wanted.rank += CountAbove(scores, wanted.score, false);
    } else if (wanted.place >= from + count) {
      *wanted.rank += CountAbove(scores, wanted.score, true);
    } else {
      for (int i = 0; i < count; ++i) {
        *wanted.rank += Outranks(scores[i], from + i, wanted.score, wanted.place);
      }
    }
  }

  const RankInputs& in_;
  std::vector<float> block_;
  std::vector<std::vector<Wanted>> wanted_;  // by query
};

}  // namespace

void CountRanks(const RankInputs& inputs, int64_t begin, int64_t end, int64_t* ranks) {
  if (begin < end) Ranker(inputs).Run(begin, end, ranks);
}

}  // namespace embedps
