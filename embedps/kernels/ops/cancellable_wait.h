// Ends an asynchronous op that waits for others: once, when its turn comes or when it is cancelled.
#ifndef EMBEDPS_KERNELS_OPS_CANCELLABLE_WAIT_H_
#define EMBEDPS_KERNELS_OPS_CANCELLABLE_WAIT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/cancellation.h"

namespace embedps {

// Thread-safe.
class CancellableWait {
 public:
  using Cancel = std::function<void(int64_t ticket)>;

  // Begins to wait. A cancellation ends the op with an error and calls `cancel`, with the ticket of
  // `SetTicket`; `resource` lives as long as that can happen. Returns null if the op is cancelled
  // already and has ended.
  template <typename Resource>
  static std::shared_ptr<CancellableWait> Start(tensorflow::OpKernelContext* context,
                                                const tensorflow::AsyncOpKernel::DoneCallback& done,
                                                Resource resource, Cancel cancel) {
    const std::shared_ptr<CancellableWait> wait(
        new CancellableWait(context->cancellation_manager(), std::move(cancel)));
    if (wait->manager_ == nullptr) return wait;
    const auto kept = std::make_shared<Resource>(std::move(resource));
    const bool registered =
        wait->manager_->RegisterCallback(wait->token_, [context, done, wait, kept] {
          if (wait->has_ended_.exchange(true)) return;
          wait->cancel_(wait->ticket_);
          context->SetStatus(absl::CancelledError("the step was cancelled"));
          done();
        });
    if (registered) return wait;
    context->SetStatus(absl::CancelledError("the step was cancelled"));
    done();
    return nullptr;
  }

  // Says what `cancel` gets, as soon as that is known.
  void SetTicket(int64_t ticket) {
    ticket_ = ticket;
    if (has_ended_) cancel_(ticket);  // a cancellation came before
  }

  // Returns whether the caller must end the op now; otherwise it was cancelled.
  bool End() {
    if (has_ended_.exchange(true)) return false;
    if (manager_ != nullptr) manager_->TryDeregisterCallback(token_);
    return true;
  }

 private:
  CancellableWait(tensorflow::CancellationManager* manager, Cancel cancel)
      : manager_(manager),
        token_(manager ? manager->get_cancellation_token()
                       : tensorflow::CancellationManager::kInvalidToken),
        cancel_(std::move(cancel)) {}

  tensorflow::CancellationManager* const manager_;
  const tensorflow::CancellationToken token_;
  const Cancel cancel_;
  std::atomic<bool> has_ended_{false};
  std::atomic<int64_t> ticket_{-1};
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_CANCELLABLE_WAIT_H_
