// Ends an asynchronous op that waits for others: once, when its turn comes or when it is cancelled.
#ifndef EMBEDPS_KERNELS_OPS_CANCELLABLE_WAIT_H_
#define EMBEDPS_KERNELS_OPS_CANCELLABLE_WAIT_H_

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/cancellation.h"

namespace embedps {

struct DeclineNothing {
  template <typename... Answers>
  void operator()(const Answers&...) const {}
};

// Ends an op with what a queue answers, or with an error when it is cancelled. Takes no thread
// while it waits.
//   resource: has the queue; it lives as long as the op can be cancelled.
//   ask(answered): asks the queue, and returns an error or a ticket. The queue calls `answered`
//     once, maybe at once, unless `queue->Cancel(ticket)` comes first.
//   answer(answers...): sets the op's outputs; returns a status.
//   decline(answers...): is called instead if the op was cancelled as the answer came.
template <typename Resource, typename Queue, typename Ask, typename Answer,
          typename Decline = DeclineNothing>
void EndWithAnswer(tensorflow::OpKernelContext* context,
                   const tensorflow::AsyncOpKernel::DoneCallback& done, Resource resource,
                   Queue* queue, const Ask& ask, const Answer& answer,
                   const Decline& decline = {}) {
  struct Wait {
    std::atomic<bool> has_ended{false};
    std::atomic<int64_t> ticket{-1};
  };
  const auto wait = std::make_shared<Wait>();
  const auto kept = std::make_shared<Resource>(std::move(resource));
  tensorflow::CancellationManager* const manager = context->cancellation_manager();
  const tensorflow::CancellationToken token =
      manager ? manager->get_cancellation_token() : tensorflow::CancellationManager::kInvalidToken;
  const auto end = [context, done](const absl::Status& status) {
    if (!status.ok()) context->SetStatus(status);
    done();
  };
  const auto cancel = [wait, kept, queue, end] {
    if (wait->has_ended.exchange(true)) return;
    queue->Cancel(wait->ticket);
    end(absl::CancelledError("the step was cancelled"));
  };
  if (manager != nullptr && !manager->RegisterCallback(token, cancel)) {
    end(absl::CancelledError("the step was cancelled"));
    return;
  }
  // Returns whether the op must end now; otherwise it was cancelled.
  const auto may_end = [wait, manager, token] {
    if (wait->has_ended.exchange(true)) return false;
    if (manager != nullptr) manager->TryDeregisterCallback(token);
    return true;
  };
  const absl::StatusOr<int64_t> ticket =
      ask([may_end, end, answer, decline](const auto&... answers) {
        if (may_end()) {
          end(answer(answers...));
        } else {
          decline(answers...);
        }
      });
  if (!ticket.ok()) {
    if (may_end()) end(ticket.status());
    return;
  }
  wait->ticket = *ticket;
  if (wait->has_ended) queue->Cancel(*ticket);  // a cancellation came before
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_CANCELLABLE_WAIT_H_
