// The hash that decides where an id lies in the indexes of this process.
#ifndef EMBEDPS_KERNELS_RUNTIME_PLACE_HASH_H_
#define EMBEDPS_KERNELS_RUNTIME_PLACE_HASH_H_

#include <cstdint>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {

// Secret random numbers of the process, drawn when it loads.
struct PlaceKey {
  uint64_t multiplier_low, multiplier_high, summand_low, summand_high;
};
extern const PlaceKey place_key;

// Hashes an id for an index. Whoever chooses ids can make them share any bits of RowHash, which is
// public; an index by it would be slow and large. Here the bits 64 to 127 of a * id + b, with
// secret a and b of 128 bits, are strongly universal (Dietzfelbinger, 1996): of any two ids that
// are chosen without the secret, k given bits are equal with probability 2^-k, as if the ids were
// random. What follows is a bijection, so this stays true; it breaks up the arithmetic progressions
// that a product makes of ids in order.
//
// It differs from run to run, so nothing that is written, sent or chosen may depend on it.
inline uint64_t PlaceHash(int64_t id) {
  const auto word = static_cast<uint64_t>(id);
  const unsigned __int128 product =
      static_cast<unsigned __int128>(word) * place_key.multiplier_low + place_key.summand_low;
  uint64_t h = static_cast<uint64_t>(product >> 64) + word * place_key.multiplier_high +
               place_key.summand_high;
  h = (h ^ (h >> 32)) * kSplitMixIncrement;
  return h ^ (h >> 29);
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_PLACE_HASH_H_
