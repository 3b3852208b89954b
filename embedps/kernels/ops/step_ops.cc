// Ops on a server's log of the steps that it has applied.
#include <string>

#include "embedps/kernels/ops/store_resource.h"
#include "embedps/kernels/runtime/step_log.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class StepLogResource : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "embedps step log"; }

  StepLog log;
};

using LogPtr = tensorflow::core::RefCountPtr<StepLogResource>;

absl::Status FindLog(OpKernelContext* context, LogPtr* log, uint32_t* step) {
  TF_RETURN_IF_ERROR(
      tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), log));
  int64_t number = 0;
  TF_RETURN_IF_ERROR(ReadScalar(context, 1, "step", &number));
  TF_RETURN_IF_ERROR(CheckStep(number));
  *step = static_cast<uint32_t>(number);
  return absl::OkStatus();
}

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
REGISTER_KERNEL_BUILDER(Name("EmbedpsStepLog").Device(tensorflow::DEVICE_CPU), StepLogOp);

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
    Tensor* is_new;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &is_new));
    is_new->scalar<bool>()() = !resource->log.Has(step);
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsStepIsNew").Device(tensorflow::DEVICE_CPU), StepIsNewOp);

REGISTER_OP("EmbedpsStepApplied")
    .Input("log: resource")
    .Input("step: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Adds a step to the log.");

class StepAppliedOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    uint32_t step;
    OP_REQUIRES_OK(context, FindLog(context, &resource, &step));
    resource->log.Add(step);
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsStepApplied").Device(tensorflow::DEVICE_CPU), StepAppliedOp);

}  // namespace
}  // namespace embedps
