// Ops of steps that several workers take together: a server waits for the step before, adds up the
// parts of a step, and applies the sum once.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/ops/cancellable_wait.h"
#include "embedps/kernels/ops/step_log_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("EmbedpsAwaitStep")
    .Input("log: resource")
    .Input("step: int64")
    .Input("after: int64")
    .Output("seen: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Waits until the log has step `after`, unless that is negative or the log has `step`. "
        "Returns how many steps the log then has.");

class AwaitStepOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    uint32_t step;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found, &step), done);
    int64_t after = 0;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 2, "after", &after), done);
    Tensor* seen;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &seen), done);
    StepLog* log = &found->log;
    EndWithAnswer(
        context, done, std::move(found), log,
        [log, after, step](auto added) -> int64_t {
          if (after >= 0 && !log->Has(step)) {
            return log->WhenAdded(static_cast<uint32_t>(after), added);
          }
          added();
          return -1;
        },
        [log, seen] {
          seen->scalar<int64_t>()() = log->Count();
          return absl::OkStatus();
        });
  }
};
EMBEDPS_KERNEL(AwaitStep);

REGISTER_OP("EmbedpsAddPart")
    .Input("log: resource")
    .Input("part: int64")
    .Input("num_parts: int64")
    .Input("rank: int64")
    .Input("num_rows: int64")
    .Input("worker: int64")
    .Input("seen: int64")
    .Input("ids: num_stores * int64")
    .Input("splits: num_stores * int32")
    .Input("gradients: num_stores * float")
    .Input("examples: num_counted * int32")
    .Input("absent: num_counted * uint8")
    .Input("dense: dense_types")
    .Attr("num_stores: int >= 0")
    .Attr("num_counted: int >= 0")
    .Attr("counted: list(int)")
    .Attr("dense_types: list({float, int32, int64}) >= 0")
    .Output("is_complete: bool")
    .Output("turn: resource")
    .Output("merged_ids: num_stores * int64")
    .Output("merged_splits: num_stores * int32")
    .Output("merged_gradients: num_stores * float")
    .Output("merged_examples: num_counted * int32")
    .Output("merged_absent: num_counted * uint8")
    .Output("merged_dense: dense_types")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return SetPartShapes(c, 7, 2);
    })
    .Doc(
        "Adds a worker's part of a step, unless the step has that part or was applied. "
        "is_complete: "
        "the caller must apply the merged parts and then call EmbedpsStepTaken with the turn. "
        "Then merged_*: by store the ids of all parts, each once per table, with their gradients' "
        "sum and counts; and the sums of the dense tensors. Floats are weighted by num_rows. "
        "Otherwise merged_* are empty rows and the caller's own dense tensors.");

class AddPartOp : public tensorflow::AsyncOpKernel {
 public:
  explicit AddPartOp(OpKernelConstruction* c) : AsyncOpKernel(c) {
    OP_REQUIRES_OK(c, tensors_.Init(c));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    StepLog::Entry entry;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found, &entry.step), done);
    int64_t num_parts = 0, rank = 0;
    StepPart part;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 2, "num_parts", &num_parts), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 3, "rank", &rank), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 4, "num_rows", &part.num_rows), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 5, "worker", &entry.worker), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 6, "seen", &entry.seen), done);
    OP_REQUIRES_OK_ASYNC(context, tensors_.Read(context, kScalars, &part), done);
    StepLogResource* resource = found.get();
    StepSums<StepPart>* sums = &resource->sums;
    const auto step = static_cast<uint32_t>(entry.step - rank);
    const auto applied = [sums, step] { sums->Applied(step); };
    const auto abandoned = [sums, step] { sums->Abandoned(step); };
    EndWithAnswer(
        context, done, std::move(found), sums,
        [&](auto decided) -> absl::StatusOr<int64_t> {
          int64_t ticket;
          TF_RETURN_IF_ERROR(
              ToTensorFlow(sums->Add(rank, num_parts, entry, std::move(part), decided, &ticket)));
          return ticket;
        },
        [=](const PartTensors::Parts& parts) {
          return tensors_.SetSums(context, parts, resource, applied, abandoned, kScalars, 2);
        },
        [abandoned](const PartTensors::Parts& parts) {
          if (!parts.empty()) abandoned();
        });
  }

 private:
  static constexpr int kScalars = 7;

  PartTensors tensors_;
};
EMBEDPS_KERNEL(AddPart);

REGISTER_OP("EmbedpsStepTaken")
    .Input("log: resource")
    .Input("is_complete: bool")
    .Input("turn: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Logs the parts of a step that was applied, if is_complete. Both are of EmbedpsAddPart.");

class StepTakenOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    bool is_complete = false;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "is_complete", &is_complete));
    if (!is_complete) return;
    const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, 2);
    const auto turn = handle.GetResource<StepTurn>();
    OP_REQUIRES_OK(context, turn.status());
    (*turn)->Applied();
  }
};
EMBEDPS_KERNEL(StepTaken);

REGISTER_OP("EmbedpsOpenSteps")
    .Input("log: resource")
    .Output("parts: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Lists [n, 3] the parts of steps that lack some: step, rank, worker; -1 if it is absent.");

class OpenStepsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    OP_REQUIRES_OK(context, FindLog(context, &resource));
    const std::vector<std::array<int64_t, 3>> found = resource->sums.Open();
    Tensor* parts;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {static_cast<int64_t>(found.size()), 3}, &parts));
    auto rows = parts->matrix<int64_t>();
    for (size_t i = 0; i < found.size(); ++i) {
      std::copy(found[i].begin(), found[i].end(), &rows(i, 0));
    }
  }
};
EMBEDPS_KERNEL(OpenSteps);

}  // namespace
}  // namespace embedps
