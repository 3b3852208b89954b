#include "embedps/kernels/store/initializers.h"

#include <algorithm>
#include <cmath>

#include "embedps/kernels/runtime/hash.h"

namespace embedps {

void InitializeEmbedding(const InitializerConfig& config, int64_t seed, uint64_t table_salt,
                         int64_t id, int dim, float* embedding) {
  const uint64_t base =
      Mix64(Mix64(static_cast<uint64_t>(seed) ^ table_salt) ^ static_cast<uint64_t>(id));
  const auto word = [base](int j) {
    return Mix64(base + static_cast<uint64_t>(j) * kSplitMixIncrement);
  };
  switch (config.kind) {
    case InitializerConfig::Kind::kConstant:
      std::fill_n(embedding, dim, config.low);
      return;
    case InitializerConfig::Kind::kUniform:
      for (int j = 0; j < dim; ++j) {
        const float u = static_cast<float>(word(j) >> 40) * 0x1p-24f;
        embedding[j] = config.low + (config.high - config.low) * u;
      }
      return;
    case InitializerConfig::Kind::kNormal:
      for (int j = 0; j < dim; j += 2) {
        const double u = (static_cast<double>(word(j) >> 11) + 1) * 0x1p-53;
        const double angle = 2 * M_PI * (static_cast<double>(word(j + 1) >> 11) * 0x1p-53);
        const double radius = std::sqrt(-2 * std::log(u));
        embedding[j] = static_cast<float>(config.low + config.high * radius * std::cos(angle));
        if (j + 1 < dim) {
          embedding[j + 1] =
              static_cast<float>(config.low + config.high * radius * std::sin(angle));
        }
      }
      return;
    case InitializerConfig::Kind::kFunction:
      return;
  }
}

}  // namespace embedps
