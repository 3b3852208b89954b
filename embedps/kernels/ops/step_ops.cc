// Ops on a server's log of the steps that it has applied.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/ops/cancellable_wait.h"
#include "embedps/kernels/ops/step_log_resource.h"
#include "embedps/kernels/ops/store_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace embedps {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

REGISTER_OP("EmbedpsStepLog")
    .Attr("container: string")
    .Attr("shared_name: string")
    .Output("log: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Finds or creates a log of steps on this device.");

class StepLogOp : public OpKernel {
 public:
  explicit StepLogOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("container", &container_));
    OP_REQUIRES_OK(c, c->GetAttr("shared_name", &name_));
  }
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, FindOrCreate<StepLogResource>(context, container_, name_,
                                                          [] { return new StepLogResource; }));
  }

 private:
  std::string container_, name_;
};
EMBEDPS_KERNEL(StepLog);

REGISTER_OP("EmbedpsStepIsNew")
    .Input("log: resource")
    .Input("step: int64")
    .Output("is_new: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Returns whether a step is not in the log.");

class StepIsNewOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    uint32_t step;
    OP_REQUIRES_OK(context, FindLog(context, &resource, &step));
    OP_REQUIRES_OK(context, OutputScalar<bool>(context, 0, !resource->log.Has(step)));
  }
};
EMBEDPS_KERNEL(StepIsNew);

REGISTER_OP("EmbedpsStepsSeen")
    .Input("log: resource")
    .Input("step: int64")
    .Output("seen: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Returns how many steps are in the log, as the given step begins.");

class StepsSeenOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    uint32_t step;
    OP_REQUIRES_OK(context, FindLog(context, &resource, &step));
    OP_REQUIRES_OK(context, OutputScalar<int64_t>(context, 0, resource->log.Count()));
  }
};
EMBEDPS_KERNEL(StepsSeen);

REGISTER_OP("EmbedpsStepApplied")
    .Input("log: resource")
    .Input("step: int64")
    .Input("worker: int64")
    .Input("seen: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Adds a worker's step to the log; it read the state after `seen` steps.");

class StepAppliedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    uint32_t step;
    OP_REQUIRES_OK(context, FindLog(context, &resource, &step));
    int64_t worker = 0, seen = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "worker", &worker));
    OP_REQUIRES_OK(context, ReadScalar(context, 3, "seen", &seen));
    resource->log.Add(step, worker, seen);
  }
};
EMBEDPS_KERNEL(StepApplied);

REGISTER_OP("EmbedpsStepEnter")
    .Input("log: resource")
    .Input("worker: int64")
    .Attr("most: int >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Waits until a worker's step may begin: none then meets more than `most` others.");

class StepEnterOp : public tensorflow::AsyncOpKernel {
 public:
  explicit StepEnterOp(OpKernelConstruction* c) : AsyncOpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("most", &most_));
  }
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found), done);
    int64_t worker = 0;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 1, "worker", &worker), done);
    StepGate* gate = &found->gate;
    EndWithAnswer(
        context, done, std::move(found), gate,
        [this, gate, worker](auto begin) { return gate->Enter(worker, most_, begin); },
        [] { return absl::OkStatus(); }, [gate, worker] { gate->Leave(worker); });
  }

 private:
  int64_t most_;
};
EMBEDPS_KERNEL(StepEnter);

REGISTER_OP("EmbedpsStepLeave")
    .Input("log: resource")
    .Input("worker: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Ends a worker's step that entered.");

class StepLeaveOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    OP_REQUIRES_OK(context, FindLog(context, &resource));
    int64_t worker = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "worker", &worker));
    resource->gate.Leave(worker);
  }
};
EMBEDPS_KERNEL(StepLeave);

REGISTER_OP("EmbedpsStaleness")
    .Input("log: resource")
    .Output("staleness: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Lists [n, 3] the log's numbers of steps: worker, staleness, steps.");

class StalenessOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    OP_REQUIRES_OK(context, FindLog(context, &resource));
    const std::vector<std::array<int64_t, 3>> found = resource->log.Staleness();
    Tensor* staleness;
    OP_REQUIRES_OK(
        context, context->allocate_output(0, {static_cast<int64_t>(found.size()), 3}, &staleness));
    auto rows = staleness->matrix<int64_t>();
    for (size_t i = 0; i < found.size(); ++i) {
      std::copy(found[i].begin(), found[i].end(), &rows(i, 0));
    }
  }
};
EMBEDPS_KERNEL(Staleness);

REGISTER_OP("EmbedpsNextStep")
    .Input("log: resource")
    .Input("call: int64")
    .Input("attempt: int64")
    .Output("step: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Numbers the next step of an attempt of a call; -1 is no call.");

class NextStepOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    OP_REQUIRES_OK(context, FindLog(context, &resource));
    int64_t call = 0, attempt = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "call", &call));
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "attempt", &attempt));
    OP_REQUIRES_OK(context, OutputScalar<int64_t>(context, 0, resource->calls.Next(call, attempt)));
  }
};
EMBEDPS_KERNEL(NextStep);

REGISTER_OP("EmbedpsStepsNumbered")
    .Input("log: resource")
    .Output("steps: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Returns how many steps have numbers.");

class StepsNumberedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    OP_REQUIRES_OK(context, FindLog(context, &resource));
    OP_REQUIRES_OK(context, OutputScalar<int64_t>(context, 0, resource->calls.Count()));
  }
};
EMBEDPS_KERNEL(StepsNumbered);

REGISTER_OP("EmbedpsNumberSteps")
    .Input("log: resource")
    .Input("step: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Gives steps the numbers from this one on.");

class NumberStepsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    uint32_t step;
    OP_REQUIRES_OK(context, FindLog(context, &resource, &step));
    resource->calls.Restart(step);
  }
};
EMBEDPS_KERNEL(NumberSteps);

REGISTER_OP("EmbedpsTaskIndex")
    .Output("task: int64")
    .SetIsStateful()  // so that it is not computed where the function is made
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Returns the index of the task that runs this op, in its cluster.");

class TaskIndexOp : public OpKernel {
  // Of a job of a cluster, as kernels/tasks.py has it.
  static constexpr int64_t kMaxTasks = 1 << 20;

 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    tensorflow::DeviceNameUtils::ParsedName name;
    OP_REQUIRES(context,
                tensorflow::DeviceNameUtils::ParseFullName(context->device()->name(), &name),
                absl::InternalError(absl::StrCat("cannot parse ", context->device()->name())));
    OP_REQUIRES_OK(context,
                   OutputScalar<int64_t>(context, 0, name.has_task ? name.task % kMaxTasks : 0));
  }
};
EMBEDPS_KERNEL(TaskIndex);

}  // namespace
}  // namespace embedps
