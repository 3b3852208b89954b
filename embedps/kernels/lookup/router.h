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
};

// The ids to ask one shard for: each once per table, ordered by table and within a table by first
// appearance. Those of table t are ids[splits[t], splits[t+1]).
struct ShardRequest {
  std::vector<int64_t> ids;
  std::vector<int32_t> splits;
};

// Deduplicates the ids of each table over all its features, and routes them to shards. position[i]
// of a feature is the index of the row of its id i in the shards' rows, concatenated in shard
// order.
std::vector<ShardRequest> Route(const std::vector<std::string>& tables, int num_shards,
                                const std::vector<FeatureIds>& features,
                                const ParallelFor& parallel);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_ROUTER_H_
