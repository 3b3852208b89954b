// Ops that evict rows by the policies of their tables, and count them.
#include "embedps/kernels/ops/store_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("EmbedpsSetOldestStep")
    .Input("store: resource")
    .Input("step: int64")
    .Attr("table: int >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Sets the step before which a table's rows are too old by their event time.");

class SetOldestStepOp : public OpKernel {
 public:
  explicit SetOldestStepOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("table", &table_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    OP_REQUIRES_OK(context, CheckTable(resource->store, table_));
    int64_t step = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "step", &step));
    OP_REQUIRES_OK(context, CheckStep(step));
    resource->store.SetOldestStep(table_, static_cast<uint32_t>(step));
  }

 private:
  int table_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsSetOldestStep").Device(tensorflow::DEVICE_CPU),
                        SetOldestStepOp);

REGISTER_OP("EmbedpsNextEvictedFile")
    .Input("store: resource")
    .Input("path: string")
    .Output("info: int64")
    .Output("error: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(3));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(
        "Finishes the file of the rows that were evicted until now; those to come get one at path. "
        "info: rows in the file, rows that could not be written, bytes. error: why they could "
        "not.");

class NextEvictedFileOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    EvictedRows* evicted = resource->store.evicted_rows();
    OP_REQUIRES(context, evicted != nullptr,
                absl::FailedPreconditionError("group '" + resource->store.config().group +
                                              "' does not keep evicted rows"));
    tensorflow::tstring path;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "path", &path));
    const EvictedFileInfo made = evicted->NextFile(path);
    Tensor *info, *error;
    OP_REQUIRES_OK(context, context->allocate_output(0, {3}, &info));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &error));
    info->vec<int64_t>()(0) = made.rows;
    info->vec<int64_t>()(1) = made.lost;
    info->vec<int64_t>()(2) = made.bytes;
    error->scalar<tensorflow::tstring>()() = made.status.message();
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsNextEvictedFile").Device(tensorflow::DEVICE_CPU),
                        NextEvictedFileOp);

REGISTER_OP("EmbedpsSweep")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Removes the rows that the tables' policies of age and norm say.");

class SweepOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    resource->store.Sweep([] { return true; });
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsSweep").Device(tensorflow::DEVICE_CPU), SweepOp);

REGISTER_OP("EmbedpsHoldSweeps")
    .Input("store: resource")
    .Attr("held: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Holds the store's own sweeps, or lets them go on. None is at work after a hold.");

class HoldSweepsOp : public OpKernel {
 public:
  explicit HoldSweepsOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("held", &held_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    resource->store.HoldSweeps(held_);
  }

 private:
  bool held_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsHoldSweeps").Device(tensorflow::DEVICE_CPU), HoldSweepsOp);

REGISTER_OP("EmbedpsEvictionStats")
    .Input("store: resource")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, kNumEvictionCauses));
      return absl::OkStatus();
    })
    .Doc("Counts each table's rows that went by age, by norm, at a limit and by hand.");

class EvictionStatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    const int num_tables = resource->store.num_tables();
    Tensor* evicted;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {num_tables, kNumEvictionCauses}, &evicted));
    for (int t = 0; t < num_tables; ++t) {
      const auto counts = resource->store.Evicted(t);
      for (int i = 0; i < kNumEvictionCauses; ++i) evicted->matrix<int64_t>()(t, i) = counts[i];
    }
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsEvictionStats").Device(tensorflow::DEVICE_CPU),
                        EvictionStatsOp);

}  // namespace
}  // namespace embedps
