// Counts the lookups of training steps.
#ifndef EMBEDPS_KERNELS_STORE_LOOKUP_COUNTS_H_
#define EMBEDPS_KERNELS_STORE_LOOKUP_COUNTS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

class LookupCounts {
 public:
  explicit LookupCounts(size_t num_tables) : ids_(num_tables) {}

  void Add(const IdsByTable& batch) {
    batches_.fetch_add(1, std::memory_order_relaxed);
    for (size_t t = 0; t < ids_.size(); ++t) {
      const int64_t ids = batch.splits[t + 1] - batch.splits[t];
      if (ids > 0) ids_[t].fetch_add(ids, std::memory_order_relaxed);
    }
  }

  int64_t batches() const { return batches_.load(std::memory_order_relaxed); }
  // Distinct ids of all batches.
  int64_t ids(int table) const { return ids_[table].load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> batches_{0};
  std::vector<std::atomic<int64_t>> ids_;  // of each table
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_LOOKUP_COUNTS_H_
