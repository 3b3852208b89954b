// The rows of a batch that are on disk, which are read together.
#ifndef EMBEDPS_KERNELS_STORE_TIERED_ROWS_H_
#define EMBEDPS_KERNELS_STORE_TIERED_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/row_tier.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

class LaterRows {
 public:
  LaterRows(const RowLayout& layout, const std::vector<std::unique_ptr<Stripe>>& stripes,
            const RowTier* tier)
      : layout_(layout), stripes_(stripes), tier_(tier) {}

  // Whether a row is on disk; if so it is visited later. The caller holds its stripe's lock.
  bool Takes(int bin, uint32_t number, const StripeOrder::Entry& entry) NO_THREAD_SAFETY_ANALYSIS {
    if (!layout_.IsOnDisk(*stripes_[bin]->Row(number))) return false;
    const MutexLock lock(&mutex_);
    tier_->Want(bin, number, entry.at, &fetched);
    entries.push_back(entry);
    return true;
  }

  // Of the rows that it took; the keys are the entries' `at`. Not while it takes more.
  RowTier::Fetched fetched;
  std::vector<StripeOrder::Entry> entries;

 private:
  const RowLayout& layout_;
  const std::vector<std::unique_ptr<Stripe>>& stripes_;
  const RowTier* const tier_;
  Mutex mutex_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_TIERED_ROWS_H_
