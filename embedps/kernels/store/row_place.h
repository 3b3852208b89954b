// Where the floats of a row are in a store whose coldest rows are on disk: after its header.
#ifndef EMBEDPS_KERNELS_STORE_ROW_PLACE_H_
#define EMBEDPS_KERNELS_STORE_ROW_PLACE_H_

#include <cstdint>
#include <cstring>

#include "embedps/kernels/store/stripe.h"

namespace embedps {

// A row's head: what stays in memory of a row on disk, besides its index entry.
struct __attribute__((packed, aligned(4))) RowHead {
  RowHeader header;
  // A slot of the BodyArena; or with kOnDisk a location in the SpillLog, and whether the embedding
  // has a norm below the table's.
  uint32_t place;
};
static_assert(sizeof(RowHead) == 20);

inline constexpr uint32_t kOnDisk = 1u << 31, kSmallNorm = 1u << 30;
inline constexpr uint32_t kPlaceMask = kSmallNorm - 1;
inline constexpr uint32_t kNoPlace = kPlaceMask;

// `row` begins a head.
inline uint32_t PlaceOf(const RowHeader& row) {
  return reinterpret_cast<const RowHead*>(&row)->place;
}
inline void SetPlace(uint32_t place, RowHeader* row) {
  reinterpret_cast<RowHead*>(row)->place = place;
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_PLACE_H_
