// What reads rows of many stripes together.
#ifndef EMBEDPS_KERNELS_STORE_BLOCK_READS_H_
#define EMBEDPS_KERNELS_STORE_BLOCK_READS_H_

#include <memory>
#include <vector>

#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

// Holds the locks of the stripes of entries, which are in the order of stripes, as long as it
// lives. All who hold several wait for them in the order of stripes, so nobody waits for himself.
class StripeLocks {
 public:
  StripeLocks(const std::vector<std::unique_ptr<Stripe>>& stripes, const StripeOrder::Entry* first,
              const StripeOrder::Entry* last) NO_THREAD_SAFETY_ANALYSIS {
    for (int bin = -1; first < last; ++first) {
      if (first->bin == bin) continue;
      bin = first->bin;
      held_[num_held_++] = &stripes[bin]->mutex;
      stripes[bin]->mutex.Lock();
    }
  }
  ~StripeLocks() NO_THREAD_SAFETY_ANALYSIS {
    while (num_held_ > 0) held_[--num_held_]->Unlock();
  }
  StripeLocks(const StripeLocks&) = delete;
  StripeLocks& operator=(const StripeLocks&) = delete;

 private:
  Mutex* held_[StripeOrder::kBlock];
  int num_held_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_BLOCK_READS_H_
