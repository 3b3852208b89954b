// The worker's half of a lookup: which ids are asked of which shard, and where each one's row will
// be found in the answers.
#ifndef EMBEDPS_KERNELS_LOOKUP_ROUTER_H_
#define EMBEDPS_KERNELS_LOOKUP_ROUTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/runtime/parallel.h"

namespace embedps {

// A feature's ids of a step.
struct FeatureIds {
  const int64_t* ids = nullptr;
  int64_t num_ids = 0;
  int table = 0;                 // index into the router's tables
  int32_t* positions = nullptr;  // [num_ids], filled by Route
};

// What one shard is asked: ids without repeats, ordered by table, within a table by first
// appearance. Those of table t are ids[splits[t], splits[t+1]).
struct ShardRequest {
  std::vector<int64_t> ids;
  std::vector<int32_t> splits;
};

// Deduplicates the ids of each table (over all its features) and routes them to shards. A feature's
// position i is the row of its id i in the shards' rows, concatenated in shard order.
std::vector<ShardRequest> Route(const std::vector<std::string>& tables, int num_shards,
                                const std::vector<FeatureIds>& features,
                                const ParallelFor& parallel);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_LOOKUP_ROUTER_H_
