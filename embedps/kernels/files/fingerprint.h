// Hashes texts to ids, as embedps/features/text_values.py does.
#ifndef EMBEDPS_KERNELS_FILES_FINGERPRINT_H_
#define EMBEDPS_KERNELS_FILES_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>

namespace embedps {

// Returns the XXH3-64 of a text, never one of the reserved ids.
int64_t Fingerprint(const char* text, size_t bytes);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_FINGERPRINT_H_
