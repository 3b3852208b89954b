// XXH3 of bytes that arrive in parts. C++20: it comes from Arrow's headers.
#ifndef EMBEDPS_KERNELS_FILES_XXH3_H_
#define EMBEDPS_KERNELS_FILES_XXH3_H_

#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#include <arrow/vendored/xxhash/xxhash.h>

namespace embedps {

class Xxh3 {
 public:
  Xxh3() : state_(XXH3_createState()) { XXH3_64bits_reset(state_); }
  ~Xxh3() { XXH3_freeState(state_); }
  Xxh3(const Xxh3&) = delete;
  Xxh3& operator=(const Xxh3&) = delete;
  void Update(const void* data, size_t bytes) { XXH3_64bits_update(state_, data, bytes); }
  uint64_t Digest() const { return XXH3_64bits_digest(state_); }

 private:
  XXH3_state_t* state_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_XXH3_H_
