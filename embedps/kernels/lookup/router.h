// The worker's first half of a lookup: decides which shard to ask for which ids, and where the row
// of each id will be in the answers.
#ifndef EMBEDPS_KERNELS_LOOKUP_ROUTER_H_
#define EMBEDPS_KERNELS_LOOKUP_ROUTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/parallel.h"

namespace embedps {

// A feature's ids in one step.
struct FeatureIds {
  const int64_t* ids = nullptr;
  int64_t num_ids = 0;
  int table = 0;                 // index into the router's tables
  int32_t* positions = nullptr;  // [num_ids]; Route fills it
  // Of a counted table: where each example's ids begin, [num_examples + 1]; null if each has one.
  const int64_t* row_splits = nullptr;
  int64_t num_examples = 0;
};

// The ids to ask one shard for: each once per table, ordered by table and within a table by first
// appearance. Those of table t are ids[splits[t], splits[t+1]).
struct ShardRequest {
  std::vector<int64_t> ids;
  std::vector<int32_t> splits;
  // Of each id how many examples show it, in one feature of its table or in several; 0 if the table
  // is not counted. Empty if no table is.
  std::vector<int32_t> examples;
};

// Deduplicates the ids of each table over all its features, and routes them to shards. position[i]
// of a feature is the index of the row of its id i in the shards' rows, concatenated in shard
// order. Counts the examples of the tables that `counted` marks, or of none if it is empty.
std::vector<ShardRequest> Route(const std::vector<std::string>& tables, int num_shards,
                                const std::vector<FeatureIds>& features,
                                const std::vector<bool>& counted, const ParallelFor& parallel);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_ROUTER_H_
