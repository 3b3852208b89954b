// Applies gradients to rows, whatever dtypes they are stored in.
#ifndef EMBEDPS_KERNELS_STORE_ROW_UPDATER_H_
#define EMBEDPS_KERNELS_STORE_ROW_UPDATER_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/store/optimizers.h"
#include "embedps/kernels/store/row_layout.h"

namespace embedps {

// Returns the key of the random bits that round a row after a step: output `step` of a SplitMix64
// stream of the row's own. So a row's bits depend on (seed, table, id, step) only, and not on
// shards or threads.
uint64_t RoundingKey(int64_t seed, uint64_t row_hash, uint32_t step);

// Updates rows of one table in one step. Stored floats are widened to float32, updated, and rounded
// at random: embeddings with the first words of RandomBits(RoundingKey), optimizer slots with those
// from (dim + 1) / 2 on. To the nearest, an accumulator would stop to grow once what is added is
// less than half of its last bit, and small changes of weights would be lost.
class RowUpdater {
 public:
  // `seed` and `table_salt` are the table's.
  RowUpdater(const RowLayout& layout, const OptimizerConfig& optimizer, int64_t seed,
             uint64_t table_salt, float learning_rate, uint32_t step);

  // Applies a gradient [dim] to a row, whose header counts this update then.
  void Apply(const float* gradient, RowHeader* row) {
    const uint32_t passed = StepsPassed(row->frequency, row->last_step, step_);
    row->last_step = step_;
    if (row->frequency < kMaxFrequency) ++row->frequency;
    if (!is_float32_) return ApplyRounded(gradient, passed, row);
    ApplyUpdate(optimizer_, layout_.dim, learning_rate_, row->frequency, passed, gradient,
                reinterpret_cast<float*>(layout_.Embedding(row)),
                reinterpret_cast<float*>(layout_.OptimizerSlots(row)));
  }

 private:
  void ApplyRounded(const float* gradient, uint32_t passed, RowHeader* row);

  const RowLayout& layout_;
  const OptimizerConfig& optimizer_;
  const int64_t seed_;
  const uint64_t table_salt_;
  const float learning_rate_;
  const uint32_t step_;
  const bool is_float32_;
  std::vector<float> embedding_, optimizer_slots_;  // empty if float32 is stored
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_UPDATER_H_
