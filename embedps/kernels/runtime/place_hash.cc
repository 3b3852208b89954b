#include "embedps/kernels/runtime/place_hash.h"

#include <random>

namespace embedps {
namespace {

uint64_t RandomWord(std::random_device* device) {
  return uint64_t{(*device)()} << 32 | (*device)();
}

PlaceKey RandomKey() {
  std::random_device device;
  const uint64_t low = RandomWord(&device);
  return {low, RandomWord(&device)};
}

}  // namespace

const PlaceKey place_key = RandomKey();

}  // namespace embedps
