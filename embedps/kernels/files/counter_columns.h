// Counters of ids without a row, as a store gives and takes them, and admission files hold them.
#ifndef EMBEDPS_KERNELS_FILES_COUNTER_COLUMNS_H_
#define EMBEDPS_KERNELS_FILES_COUNTER_COLUMNS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

// One batch of records by column. Each vector has num_records entries.
struct CounterColumns {
  int64_t num_records = 0;
  std::vector<int16_t> table;
  std::vector<int64_t> id;
  std::vector<uint32_t> count;
  std::vector<uint32_t> last_step;
  std::vector<uint8_t> removed;
};

using CounterSink = std::function<Status(const CounterColumns&)>;

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_COUNTER_COLUMNS_H_
