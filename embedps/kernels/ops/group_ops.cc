// Ops of steps that do not wait for their slowest workers: one server decides which parts are
// applied together, and each server then applies their sum once.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/ops/cancellable_wait.h"
#include "embedps/kernels/ops/step_log_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

absl::Status SetVector(OpKernelContext* context, int output, const std::vector<int64_t>& values) {
  Tensor* out;
  TF_RETURN_IF_ERROR(context->allocate_output(output, {static_cast<int64_t>(values.size())}, &out));
  std::copy(values.begin(), values.end(), out->flat<int64_t>().data());
  return absl::OkStatus();
}

// A worker that is in a unit. It leaves when the unit ends, or when the attempt ends before that.
class GroupMember : public tensorflow::ResourceBase {
 public:
  GroupMember(StepLogResource* log, int64_t worker) : log_(log), worker_(worker) { log->Ref(); }
  ~GroupMember() override { Leave(); }
  std::string DebugString() const override { return "embedps worker of a group"; }

  void Leave() {
    if (has_left_) return;
    has_left_ = true;
    log_->groups.Leave(worker_);
  }

 private:
  const LogPtr log_;
  const int64_t worker_;
  bool has_left_ = false;
};

REGISTER_OP("EmbedpsEnterGroups")
    .Input("log: resource")
    .Input("worker: int64")
    .Input("backup_workers: int64")
    .Output("num_closed: int64")
    .Output("member: resource")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(
        "Lets a worker take part in steps as long as the member lives. A group does not wait for "
        "`backup_workers` of those that take part. Returns how many groups are closed.");

class EnterGroupsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr found;
    OP_REQUIRES_OK(context, FindLog(context, &found));
    int64_t worker = 0, backup_workers = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "worker", &worker));
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "backup_workers", &backup_workers));
    OP_REQUIRES(context, backup_workers >= 0,
                absl::InvalidArgumentError("backup_workers must be at least 0 but is " +
                                           std::to_string(backup_workers)));
    Tensor *num_closed, *member;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &num_closed));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &member));
    num_closed->scalar<int64_t>()() = found->groups.Enter(worker, backup_workers);
    member->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(new GroupMember(found.get(), worker),
                                                          context->device()->name(), {}, {});
  }
};
EMBEDPS_KERNEL(EnterGroups);

REGISTER_OP("EmbedpsAwaitGroups")
    .Input("log: resource")
    .Input("num_groups: int64")
    .Output("num_applied: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Waits until so many groups are applied. Returns how many are.");

class AwaitGroupsOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found), done);
    int64_t num_groups = 0;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 1, "num_groups", &num_groups), done);
    Tensor* num_applied;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &num_applied), done);
    GroupSums<StepPart>* sums = &found->group_sums;
    EndWithAnswer(
        context, done, std::move(found), sums,
        [sums, num_groups](auto begin) { return sums->Await(num_groups, begin); },
        [sums, num_applied] {
          num_applied->scalar<int64_t>()() = sums->NumApplied();
          return absl::OkStatus();
        });
  }
};
EMBEDPS_KERNEL(AwaitGroups);

REGISTER_OP("EmbedpsHoldPart")
    .Input("log: resource")
    .Input("part: int64")
    .Input("num_rows: int64")
    .Input("worker: int64")
    .Input("seen: int64")
    .Input("learning_rate: float")
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
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Keeps a part until its group is taken, unless it has it or the part was applied.");

class HoldPartOp : public tensorflow::OpKernel {
 public:
  explicit HoldPartOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, tensors_.Init(c));
  }

  void Compute(OpKernelContext* context) override {
    LogPtr found;
    StepLog::Entry entry;
    StepPart part;
    OP_REQUIRES_OK(context, FindLog(context, &found, &entry.step));
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "num_rows", &part.num_rows));
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "worker", &entry.worker));
    OP_REQUIRES_OK(context, ReadScalar(context, 4, "seen", &entry.seen));
    OP_REQUIRES_OK(context, ReadScalar(context, 5, "learning_rate", &part.learning_rate));
    OP_REQUIRES_OK(context, tensors_.Read(context, 6, &part));
    found->group_sums.Hold(entry, std::move(part));
  }

 private:
  PartTensors tensors_;
};
EMBEDPS_KERNEL(HoldPart);

// Ends an op with the group of a part once it is closed; `ask(groups, closed)` returns the ticket.
template <typename Ask>
void EndWithGroup(OpKernelContext* context, const tensorflow::AsyncOpKernel::DoneCallback& done,
                  LogPtr found, const Ask& ask) {
  StepGroups* groups = &found->groups;
  EndWithAnswer(
      context, done, std::move(found), groups,
      [groups, &ask](auto closed) { return ask(groups, closed); },
      [context](const StepGroups::Group& group) {
        TF_RETURN_IF_ERROR(OutputScalar<int64_t>(context, 0, group.index));
        return SetVector(context, 1, group.parts);
      });
}

absl::Status GroupShapes(InferenceContext* c) {
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

REGISTER_OP("EmbedpsJoinGroup")
    .Input("log: resource")
    .Input("part: int64")
    .Input("worker: int64")
    .Input("seen: int64")
    .Output("index: int64")
    .Output("parts: int64")
    .SetIsStateful()
    .SetShapeFn(GroupShapes)
    .Doc(
        "Adds a part to the open group. If the part is fresh, waits until the group closes, and "
        "returns it; else returns the last group that closed, -1 if none has, without its parts.");

class JoinGroupOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    uint32_t part;
    int64_t worker = 0, seen = 0;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found, &part), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 2, "worker", &worker), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 3, "seen", &seen), done);
    EndWithGroup(context, done, std::move(found),
                 [part, worker, seen](StepGroups* groups, auto closed) {
                   return groups->Join(part, worker, seen, closed);
                 });
  }
};
EMBEDPS_KERNEL(JoinGroup);

REGISTER_OP("EmbedpsLeaveGroups")
    .Input("log: resource")
    .Input("part: int64")
    .Input("member: resource")
    .Output("index: int64")
    .Output("parts: int64")
    .SetIsStateful()
    .SetShapeFn(GroupShapes)
    .Doc(
        "Ends a worker's membership, waits until the group of a part, its last, is closed, and "
        "returns that group; -1 if it was applied long ago.");

class LeaveGroupsOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    uint32_t part;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found, &part), done);
    const auto member = tensorflow::HandleFromInput(context, 2).GetResource<GroupMember>();
    OP_REQUIRES_OK_ASYNC(context, member.status(), done);
    (*member)->Leave();
    EndWithGroup(context, done, std::move(found),
                 [part](StepGroups* groups, auto closed) { return groups->Await(part, closed); });
  }
};
EMBEDPS_KERNEL(LeaveGroups);

REGISTER_OP("EmbedpsTakeGroup")
    .Input("log: resource")
    .Input("index: int64")
    .Input("parts: int64")
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
    .Output("step: int64")
    .Output("learning_rate: float")
    .Output("merged_ids: num_stores * int64")
    .Output("merged_splits: num_stores * int32")
    .Output("merged_gradients: num_stores * float")
    .Output("merged_examples: num_counted * int32")
    .Output("merged_absent: num_counted * uint8")
    .Output("merged_dense: dense_types")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 4; ++i) c->set_output(i, c->Scalar());
      return SetPartShapes(c, 3, 4);
    })
    .Doc(
        "Waits until a group is applied or, if this call got its parts, until it must apply it: "
        "is_complete. Then the caller "
        "applies the merged parts, as of EmbedpsAddPart, with the step and the learning rate of "
        "the first of them, and calls EmbedpsStepTaken with the turn. Otherwise merged_* are empty "
        "rows and the caller's own dense tensors.");

class TakeGroupOp : public tensorflow::AsyncOpKernel {
 public:
  explicit TakeGroupOp(OpKernelConstruction* c) : AsyncOpKernel(c) {
    OP_REQUIRES_OK(c, tensors_.Init(c));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found), done);
    int64_t index = 0;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 1, "index", &index), done);
    const auto numbers = context->input(2).flat<int64_t>();
    const std::vector<int64_t> parts(numbers.data(), numbers.data() + numbers.size());
    const int64_t step = parts.empty() ? 0 : parts[0];
    StepLogResource* resource = found.get();
    GroupSums<StepPart>* sums = &resource->group_sums;
    EndWithAnswer(
        context, done, std::move(found), sums,
        [&](auto decided) -> absl::StatusOr<int64_t> {
          int64_t ticket;
          TF_RETURN_IF_ERROR(ToTensorFlow(sums->Take(index, parts, decided, &ticket)));
          return ticket;
        },
        [=](const PartTensors::Parts& parts) { return Set(context, resource, step, parts); },
        [sums](const PartTensors::Parts& parts) {
          if (!parts.empty()) sums->Abandoned();
        });
  }

 private:
  absl::Status Set(OpKernelContext* context, StepLogResource* resource, int64_t step,
                   const PartTensors::Parts& parts) const {
    GroupSums<StepPart>* sums = &resource->group_sums;
    TF_RETURN_IF_ERROR(tensors_.SetSums(
        context, parts, resource, [sums] { sums->Applied(); }, [sums] { sums->Abandoned(); }, 3,
        4));
    Tensor *number, *learning_rate;
    TF_RETURN_IF_ERROR(context->allocate_output(2, {}, &number));
    TF_RETURN_IF_ERROR(context->allocate_output(3, {}, &learning_rate));
    number->scalar<int64_t>()() = step;
    learning_rate->scalar<float>()() = parts.empty() ? 0 : parts[0]->learning_rate;
    return absl::OkStatus();
  }

  PartTensors tensors_;
};
EMBEDPS_KERNEL(TakeGroup);

REGISTER_OP("EmbedpsForgetWorker")
    .Input("log: resource")
    .Input("worker: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Lets no group wait for a worker until it brings a part.");

class ForgetWorkerOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr found;
    OP_REQUIRES_OK(context, FindLog(context, &found));
    int64_t worker = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "worker", &worker));
    found->groups.Forget(worker);
  }
};
EMBEDPS_KERNEL(ForgetWorker);

REGISTER_OP("EmbedpsLastGroups")
    .Input("log: resource")
    .Output("indexes: int64")
    .Output("sizes: int64")
    .Output("parts: int64")
    .Output("awaited: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(
        "Lists the last groups, of which the last is open: indexes, numbers of parts, and parts; "
        "and the workers for which those wait that have a fresh part in the open group.");

class LastGroupsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr found;
    OP_REQUIRES_OK(context, FindLog(context, &found));
    std::vector<int64_t> indexes, sizes, parts;
    for (const StepGroups::Group& group : found->groups.Last()) {
      indexes.push_back(group.index);
      sizes.push_back(static_cast<int64_t>(group.parts.size()));
      parts.insert(parts.end(), group.parts.begin(), group.parts.end());
    }
    OP_REQUIRES_OK(context, SetVector(context, 0, indexes));
    OP_REQUIRES_OK(context, SetVector(context, 1, sizes));
    OP_REQUIRES_OK(context, SetVector(context, 2, parts));
    OP_REQUIRES_OK(context, SetVector(context, 3, found->groups.Awaited()));
  }
};
EMBEDPS_KERNEL(LastGroups);

}  // namespace
}  // namespace embedps
