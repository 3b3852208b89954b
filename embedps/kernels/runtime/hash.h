// The hashes that fix where a row lives and what it starts as. They are part of the checkpoint's
// meaning (a restore must route a row as training does): never change one without a format version.
#ifndef EMBEDPS_KERNELS_RUNTIME_HASH_H_
#define EMBEDPS_KERNELS_RUNTIME_HASH_H_

#include <cstdint>
#include <string_view>

namespace embedps {

// SplitMix64's finalizer (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
// 2014): a bijection of 64-bit words.
inline uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// FNV-1a, 64 bits, of a table's name, so that a table's rows do not depend on what it is stacked
// with.
inline uint64_t TableSalt(std::string_view name) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001B3ull;
  return h;
}

inline uint64_t RowHash(uint64_t table_salt, int64_t id) {
  return Mix64(static_cast<uint64_t>(id) ^ table_salt);
}

// The shard of a row: the hash's upper half scaled to [0, num_shards).
inline int ShardOf(uint64_t row_hash, int num_shards) {
  return static_cast<int>(((row_hash >> 32) * static_cast<uint64_t>(num_shards)) >> 32);
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_HASH_H_
