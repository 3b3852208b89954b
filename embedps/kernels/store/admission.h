// Admission: decides which ids of a table get a row.
#ifndef EMBEDPS_KERNELS_STORE_ADMISSION_H_
#define EMBEDPS_KERNELS_STORE_ADMISSION_H_

#include <cstdint>

#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/runtime/settings.h"

namespace embedps {

inline constexpr const char* kAdmissionKinds[] = {"always", "min_count", "chance"};

struct AdmissionConfig {
  enum class Kind { kAlways, kMinCount, kChance };
  Kind kind = Kind::kAlways;
  uint32_t min_count = 0;  // kMinCount: the example that admits an id, from 2 to kMaxMinCount
  uint32_t expire_steps =
      0;                   // kMinCount: a counter expires so long after its last example; 0 never
  uint64_t threshold = 0;  // kChance: 2^32 times the probability

  // Whether ids without a row have counters.
  bool counts() const { return kind == Kind::kMinCount; }

  void Read(Settings* settings) {
    settings->Name("admission", kAdmissionKinds, &kind);
    settings->Number("admission.count", 2, kMaxMinCount, &min_count);
    settings->Number("admission.expire_steps", 0, UINT32_MAX, &expire_steps);
    double probability = 0;
    settings->Number("admission.probability", 0, 1, &probability);
    threshold = static_cast<uint64_t>(probability * 0x1p32);
  }
};

// Of one table.
struct AdmissionStats {
  int64_t counters = 0;  // of ids without a row
  int64_t bytes = 0;     // of these counters; a part of memory_bytes
  int64_t admitted = 0;  // ids that admission gave a row
  // Ids that got no row, by admission or because the table is full, once per step; their gradients
  // were dropped.
  int64_t refused = 0;
};

// What a training step shows of a batch's ids.
struct ShownIds {
  const int32_t* examples = nullptr;  // how many of the step's examples show each id
  uint32_t step = 0;
  uint8_t* absent = nullptr;  // marks the ids that admission decides about
};

// Whether one of a step's examples admits an id by chance. An occurrence is a step and the number
// of the example among those of the step that show the id. So every attempt at a step draws the
// same, and each occurrence draws anew.
inline bool AdmitsByChance(uint64_t threshold, int64_t seed, uint64_t table_salt, int64_t id,
                           uint32_t step, int32_t examples) {
  const uint64_t of_id =
      Mix64(Mix64(static_cast<uint64_t>(seed) ^ table_salt) ^ static_cast<uint64_t>(id));
  const uint64_t of_step = Mix64(~of_id + step * kSplitMixIncrement);
  for (int32_t j = 0; j < examples; ++j) {
    if (Mix64(of_step + j * kSplitMixIncrement) >> 32 < threshold) return true;
  }
  return false;
}

// Whether one of a step's examples admits an id, by a policy without counters.
inline bool AdmitsUncounted(const AdmissionConfig& config, int64_t seed, uint64_t table_salt,
                            int64_t id, uint32_t step, int32_t examples) {
  switch (config.kind) {
    case AdmissionConfig::Kind::kChance:
      return AdmitsByChance(config.threshold, seed, table_salt, id, step, examples);
    case AdmissionConfig::Kind::kAlways:
    case AdmissionConfig::Kind::kMinCount:
      break;
  }
  return true;
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ADMISSION_H_
