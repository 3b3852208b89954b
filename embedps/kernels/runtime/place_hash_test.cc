#include "embedps/kernels/runtime/place_hash.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "embedps/kernels/testing/chosen_ids.h"
#include "embedps/kernels/testing/testing.h"

namespace embedps {
namespace {

constexpr uint64_t kIds = 1 << 16;

// Ids in some order, as data sets have them, and as somebody chooses them.
std::vector<std::vector<int64_t>> Families() {
  std::vector<std::vector<int64_t>> families;
  for (const int shift : {0, 1, 7, 12, 20, 32, 40, 48}) {
    std::vector<int64_t> ids, hashes;
    for (uint64_t i = 0; i < kIds; ++i) {
      ids.push_back(static_cast<int64_t>(i << shift));
      hashes.push_back(static_cast<int64_t>(testing::UnMix64(i << shift)));
    }
    families.push_back(ids);
    families.push_back(hashes);
  }
  families.push_back(testing::ChosenIds(0, kIds));
  for (const int64_t stride : {3, 1000, 1000003, -7}) {
    families.emplace_back();
    for (int64_t i = 0; i < static_cast<int64_t>(kIds); ++i) families.back().push_back(i * stride);
  }
  return families;
}

TEST(TheInverseOfTheHashIsOne) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const uint64_t word = Mix64(i);
    EXPECT_EQ(Mix64(testing::UnMix64(word)), word);
  }
}

TEST(NoChoiceOfIdsSharesMoreBitsThanRandomIdsDo) {
  for (const std::vector<int64_t>& ids : Families()) {
    // The bits that an index takes: for the first entry, the directory, a page, and the tag.
    for (const int first : {0, 12, 24, 32, 48}) {
      std::unordered_map<uint64_t, int64_t> with;  // ids by 16 bits of their hashes
      int64_t pairs = 0;
      for (const int64_t id : ids)
        pairs += with[PlaceHash(static_cast<uint64_t>(id)) >> first & 0xFFFF]++;
      const int64_t expected = kIds * (kIds - 1) / 2 / 0x10000;  // of random ids
      EXPECT_TRUE(pairs < expected * 5 / 4);
    }
  }
}

TEST(NoChoiceOfIdsMakesLongSearches) {
  for (const std::vector<int64_t>& ids : Families()) {
    constexpr uint64_t kPlaces = 2 * kIds;
    std::vector<bool> taken(kPlaces);
    int64_t probes = 0;
    for (const int64_t id : ids) {
      uint64_t at = PlaceHash(static_cast<uint64_t>(id)) % kPlaces;
      for (; taken[at]; at = (at + 1) % kPlaces) ++probes;
      taken[at] = true;
    }
    // Knuth: a place is found after 1/2 + 1/(2 (1 - load)) probes, so 0.5 are in vain at the end.
    EXPECT_TRUE(probes < static_cast<int64_t>(kIds * 6 / 10));
  }
}

}  // namespace
}  // namespace embedps

int main() { return embedps::testing::RunAllTests(); }
