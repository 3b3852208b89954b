// Ops that evict rows by the policies of their tables, and count them.
#include "embedps/kernels/ops/store_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

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

class SetOldestStepOp : public TableOp {
 public:
  using TableOp::TableOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    int64_t step = 0;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "step", &step));
    TF_RETURN_IF_ERROR(CheckStep(step));
    store->SetOldestStep(table_, static_cast<uint32_t>(step));
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(SetOldestStep);

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

class NextEvictedFileOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    EvictedRows* evicted = store->evicted_rows();
    if (evicted == nullptr) {
      return absl::FailedPreconditionError("group '" + store->config().group +
                                           "' does not keep evicted rows");
    }
    tensorflow::tstring path;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "path", &path));
    const EvictedFileInfo made = evicted->NextFile(path);
    Tensor *info, *error;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {3}, &info));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &error));
    info->vec<int64_t>()(0) = made.rows;
    info->vec<int64_t>()(1) = made.lost;
    info->vec<int64_t>()(2) = made.bytes;
    error->scalar<tensorflow::tstring>()() = made.status.message();
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(NextEvictedFile);

REGISTER_OP("EmbedpsSweep")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Removes the rows that the tables' policies of age and norm say.");

class SweepOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    store->Sweep([] { return true; });
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(Sweep);

REGISTER_OP("EmbedpsHoldSweeps")
    .Input("store: resource")
    .Attr("held: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Holds the store's own sweeps, or lets them go on. None is at work after a hold.");

class HoldSweepsOp : public StoreOp {
 public:
  explicit HoldSweepsOp(OpKernelConstruction* c) : StoreOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("held", &held_));
  }
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    store->HoldSweeps(held_);
    return absl::OkStatus();
  }

 private:
  bool held_;
};
EMBEDPS_KERNEL(HoldSweeps);

REGISTER_OP("EmbedpsEvictionStats")
    .Input("store: resource")
    .Output("evicted: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, kNumEvictionCauses));
      return absl::OkStatus();
    })
    .Doc("Counts each table's rows that went by age, by norm, at a limit and by hand.");

class EvictionStatsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    const int num_tables = store->num_tables();
    Tensor* evicted;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_tables, kNumEvictionCauses}, &evicted));
    for (int t = 0; t < num_tables; ++t) {
      const auto counts = store->Evicted(t);
      for (int i = 0; i < kNumEvictionCauses; ++i) evicted->matrix<int64_t>()(t, i) = counts[i];
    }
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(EvictionStats);

}  // namespace
}  // namespace embedps
