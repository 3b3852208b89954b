// The rows of a batch that are on disk, which are read together.
#ifndef EMBEDPS_KERNELS_STORE_TIERED_ROWS_H_
#define EMBEDPS_KERNELS_STORE_TIERED_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/reads_under_way.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/row_place.h"
#include "embedps/kernels/store/row_tier.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

class LaterRows {
 public:
  // With `reads` it leaves to other threads what they are reading, and they to it.
  LaterRows(const RowLayout& layout, const std::vector<std::unique_ptr<Stripe>>& stripes,
            const RowTier* tier, ReadsUnderWay* reads)
      : layout_(layout), stripes_(stripes), tier_(tier), reads_(reads) {}
  ~LaterRows() { End(); }
  LaterRows(const LaterRows&) = delete;
  LaterRows& operator=(const LaterRows&) = delete;

  // Whether a row is on disk; if so it is visited later. The caller holds its stripe's lock.
  bool Takes(int bin, uint32_t number, const StripeOrder::Entry& entry) NO_THREAD_SAFETY_ANALYSIS {
    const RowHeader& row = *stripes_[bin]->Row(number);
    if (!layout_.IsOnDisk(row)) return false;
    const uint32_t location = PlaceOf(row) & kPlaceMask;
    const MutexLock lock(&mutex_);
    if (reads_ != nullptr && !reads_->Begin(location)) {
      of_others_.push_back(location);
      others.push_back(entry);
      return true;
    }
    if (reads_ != nullptr) own_.push_back(location);
    tier_->Want(bin, number, entry.at, &fetched);
    entries.push_back(entry);
    return true;
  }

  // Tells those who wait that the rows it took are visited.
  void End() {
    if (reads_ != nullptr) reads_->End(own_);
    own_.clear();
  }

  // Ends, and waits for the others.
  void WaitForOthers() {
    End();
    reads_->Wait(of_others_);
  }

  // Of the rows that it took; the keys are the entries' `at`. Not while it takes more.
  RowTier::Fetched fetched;
  std::vector<StripeOrder::Entry> entries;
  std::vector<StripeOrder::Entry> others;  // that other threads are reading

 private:
  const RowLayout& layout_;
  const std::vector<std::unique_ptr<Stripe>>& stripes_;
  const RowTier* const tier_;
  ReadsUnderWay* const reads_;
  Mutex mutex_;
  std::vector<uint32_t> own_, of_others_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_TIERED_ROWS_H_
