// The hash that decides where an id lies in the indexes of this process.
#ifndef EMBEDPS_KERNELS_RUNTIME_PLACE_HASH_H_
#define EMBEDPS_KERNELS_RUNTIME_PLACE_HASH_H_

#include <cstdint>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {

// A secret random number of 128 bits, drawn when the process loads.
struct PlaceKey {
  uint64_t low, high;
};
extern const PlaceKey place_key;

// Hashes an id, or its RowHash, for an index. Whoever chooses ids can make them share any bits of
// their RowHash, which is public; an index by it would be slow and large. Here the bits 64 to 127
// of the product with a secret of 128 bits are universal (Dietzfelbinger and others, 1997): of any
// two words that are chosen without the secret, k given bits in a row are equal with probability 2
// * 2^-k at most, about as if the words were random. What follows is a bijection. It breaks up
// equal distances, which a product leaves equal, and which could be unlucky ones.
//
// It differs from run to run, so nothing that is written, sent or chosen may depend on it.
inline uint64_t PlaceHash(uint64_t word) {
  const auto product = static_cast<unsigned __int128>(word) * place_key.low;
  uint64_t h = static_cast<uint64_t>(product >> 64) + word * place_key.high;
  h = (h ^ (h >> 32)) * kSplitMixIncrement;
  return h ^ (h >> 32);
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_PLACE_HASH_H_
