#include "embedps/kernels/lookup/router.h"

#include <algorithm>

#include "embedps/kernels/lookup/id_numbers.h"
#include "embedps/kernels/runtime/hash.h"

namespace embedps {
namespace {

// A table's ids without repeats, in order of first appearance.
struct UniqueIds {
  std::vector<int64_t> ids;
  std::vector<int32_t> shards;     // of each id, if there are several shards
  std::vector<int32_t> per_shard;  // number of ids per shard
  std::vector<int32_t> examples;   // of each id, if the table is counted
};

// Collects the features' unique ids. Sets the features' positions to indices into them.
void Deduplicate(uint64_t salt, int num_shards, const std::vector<const FeatureIds*>& features,
                 UniqueIds* unique) {
  int64_t num_ids = 0;
  for (const FeatureIds* f : features) num_ids += f->num_ids;
  unique->per_shard.assign(num_shards, 0);
  unique->ids.reserve(num_ids / 2);
  IdNumbers numbers(num_ids);
  for (const FeatureIds* f : features) {
    for (int64_t i = 0; i < f->num_ids; ++i) {
      f->positions[i] = numbers.Add(f->ids[i], &unique->ids);
    }
  }
  if (num_shards == 1) {
    unique->per_shard[0] = static_cast<int32_t>(unique->ids.size());
    return;
  }
  // In a loop of its own: the processor then hashes several ids at once, which it could not after
  // the branch, predicted wrongly, that tells a new id.
  unique->shards.resize(unique->ids.size());
  for (size_t k = 0; k < unique->ids.size(); ++k) {
    const int shard = ShardOf(RowHash(salt, unique->ids[k]), num_shards);
    unique->shards[k] = shard;
    ++unique->per_shard[shard];
  }
}

// Counts the examples that show each unique id. The features' positions are indices into these.
void CountExamples(const std::vector<const FeatureIds*>& features, UniqueIds* unique) {
  unique->examples.assign(unique->ids.size(), 0);
  if (features.size() == 1 && features[0]->row_splits == nullptr) {  // each example has one id
    for (int64_t i = 0; i < features[0]->num_ids; ++i) {
      ++unique->examples[features[0]->positions[i]];
    }
    return;
  }
  std::vector<int64_t> last(unique->ids.size(), -1);  // the last example that showed the id
  int64_t num_examples = 0;
  for (const FeatureIds* f : features) num_examples = std::max(num_examples, f->num_examples);
  for (int64_t e = 0; e < num_examples; ++e) {
    for (const FeatureIds* f : features) {
      if (e >= f->num_examples) continue;
      const int64_t first = f->row_splits == nullptr ? e : f->row_splits[e];
      const int64_t end = f->row_splits == nullptr ? e + 1 : f->row_splits[e + 1];
      for (int64_t i = first; i < end; ++i) {
        const int32_t at = f->positions[i];
        if (last[at] == e) continue;
        last[at] = e;
        ++unique->examples[at];
      }
    }
  }
}

}  // namespace

std::vector<ShardRequest> Route(const std::vector<std::string>& tables, int num_shards,
                                const std::vector<FeatureIds>& features,
                                const std::vector<bool>& counted, const ParallelFor& parallel) {
  const int num_tables = static_cast<int>(tables.size());
  std::vector<std::vector<const FeatureIds*>> of_table(num_tables);
  int64_t num_ids = 0;
  for (const FeatureIds& f : features) {
    of_table[f.table].push_back(&f);
    num_ids += f.num_ids;
  }
  const int64_t cost = num_tables == 0 ? 0 : 20 * num_ids / num_tables;

  std::vector<UniqueIds> unique(num_tables);
  parallel(num_tables, cost, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      Deduplicate(TableSalt(tables[t]), num_shards, of_table[t], &unique[t]);
      if (!counted.empty() && counted[t]) CountExamples(of_table[t], &unique[t]);
    }
  });

  std::vector<ShardRequest> requests(num_shards);
  for (int s = 0; s < num_shards; ++s) {
    requests[s].splits.assign(num_tables + 1, 0);
    for (int t = 0; t < num_tables; ++t) {
      requests[s].splits[t + 1] = requests[s].splits[t] + unique[t].per_shard[s];
    }
    requests[s].ids.resize(requests[s].splits[num_tables]);
    if (!counted.empty()) requests[s].examples.resize(requests[s].splits[num_tables]);
  }
  std::vector<int32_t> shard_starts(num_shards, 0);  // in the concatenation of the shards' rows
  for (int s = 1; s < num_shards; ++s) {
    shard_starts[s] = shard_starts[s - 1] + requests[s - 1].splits[num_tables];
  }

  parallel(num_tables, cost, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> next(num_shards), rows;
    for (int64_t t = begin; t < end; ++t) {
      const UniqueIds& u = unique[t];
      if (num_shards == 1) {
        const int32_t first = requests[0].splits[t];
        std::copy(u.ids.begin(), u.ids.end(), requests[0].ids.begin() + first);
        std::copy(u.examples.begin(), u.examples.end(),
                  requests[0].examples.begin() + (u.examples.empty() ? 0 : first));
        for (const FeatureIds* f : of_table[t]) {
          for (int64_t i = 0; i < f->num_ids; ++i) f->positions[i] += first;
        }
        continue;
      }
      for (int s = 0; s < num_shards; ++s) next[s] = requests[s].splits[t];
      rows.resize(u.ids.size());
      for (size_t k = 0; k < u.ids.size(); ++k) {
        const int s = u.shards[k];
        requests[s].ids[next[s]] = u.ids[k];
        if (!u.examples.empty()) requests[s].examples[next[s]] = u.examples[k];
        rows[k] = shard_starts[s] + next[s]++;
      }
      for (const FeatureIds* f : of_table[t]) {
        for (int64_t i = 0; i < f->num_ids; ++i) f->positions[i] = rows[f->positions[i]];
      }
    }
  });
  return requests;
}

}  // namespace embedps
