// The hashes that decide a row's shard and its initial value. A restore must route rows as training
// did, so the hashes belong to the checkpoint format: a change needs a new format version.
#ifndef EMBEDPS_KERNELS_RUNTIME_HASH_H_
#define EMBEDPS_KERNELS_RUNTIME_HASH_H_

#include <cstdint>
#include <string_view>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {

// Mixes a word as SplitMix64 does (source: constants.h). It is a bijection of 64-bit words.
inline uint64_t Mix64(uint64_t x) {
  x += kSplitMixIncrement;
  x = (x ^ (x >> 30)) * kSplitMixMultiplier1;
  x = (x ^ (x >> 27)) * kSplitMixMultiplier2;
  return x ^ (x >> 31);
}

// Hashes a table's name by FNV-1a. A table's rows do not depend on the tables it is stacked with.
inline uint64_t TableSalt(std::string_view name) {
  uint64_t h = kFnvOffset;
  for (unsigned char c : name) h = (h ^ c) * kFnvPrime;
  return h;
}

inline uint64_t RowHash(uint64_t table_salt, int64_t id) {
  return Mix64(static_cast<uint64_t>(id) ^ table_salt);
}

// Returns a row's shard: the hash's upper half, scaled to [0, num_shards).
inline int ShardOf(uint64_t row_hash, int num_shards) {
  return static_cast<int>(((row_hash >> 32) * static_cast<uint64_t>(num_shards)) >> 32);
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_HASH_H_
