// Ops of a training step on tables that admit ids: the lookup that tells which ids are absent, and
// the admission of these ids. They run on a parameter server.
#include <string>
#include <vector>

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

// Reads input 3, the examples of each id of a batch, and input `at_step`.
absl::Status ReadShown(OpKernelContext* context, int at_step, const IdsByTable& batch,
                       ShownIds* shown) {
  const Tensor& examples = context->input(3);
  if (examples.dims() != 1 || examples.NumElements() != batch.num_ids) {
    return absl::InvalidArgumentError("examples must be [" + std::to_string(batch.num_ids) +
                                      "] but got shape " + examples.shape().DebugString());
  }
  int64_t step = 0;
  TF_RETURN_IF_ERROR(ReadScalar(context, at_step, "step", &step));
  TF_RETURN_IF_ERROR(CheckStep(step));
  shown->examples = examples.flat<int32_t>().data();
  shown->step = static_cast<uint32_t>(step);
  return absl::OkStatus();
}

REGISTER_OP("EmbedpsLookupShown")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .Input("examples: int32")
    .Input("step: int64")
    .Attr("dim: int >= 1")
    .Output("rows: float")
    .Output("absent: uint8")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(1, c->input(1));
      return SetRowsShape(c, 1);
    })
    .Doc(
        "Reads a training step's rows. examples: how many of the step's examples show each id. An "
        "absent id of a table with a policy of admission reads as its initial value if this step "
        "will admit it, and gets no row yet; absent marks these ids with 1.");

class LookupShownOp : public StoreOp {
 public:
  explicit LookupShownOp(OpKernelConstruction* c) : StoreOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("dim", &dim_));
  }
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    IdsByTable batch;
    float* rows;
    TF_RETURN_IF_ERROR(BeginLookup(context, 1, *store, dim_, &batch, &rows));
    ShownIds shown;
    TF_RETURN_IF_ERROR(ReadShown(context, 4, batch, &shown));
    Tensor* absent;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {batch.num_ids}, &absent));
    shown.absent = absent->flat<uint8_t>().data();
    return ToTensorFlow(store->LookupShown(batch, shown, DeviceThreads(context), rows));
  }

 private:
  int dim_;
};
EMBEDPS_KERNEL(LookupShown);

REGISTER_OP("EmbedpsAdmit")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .Input("examples: int32")
    .Input("absent: uint8")
    .Input("step: int64")
    .Input("is_new: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(
        "Counts the examples of the ids that EmbedpsLookupShown marked as absent, and creates the "
        "rows of those that they admit, if the step is new. The step's update follows.");

class AdmitOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    IdsByTable batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, 1, *store, &batch));
    ShownIds shown;
    TF_RETURN_IF_ERROR(ReadShown(context, 5, batch, &shown));
    Tensor absent = context->input(4);
    if (absent.dims() != 1 || absent.NumElements() != batch.num_ids) {
      return absl::InvalidArgumentError("absent must be [" + std::to_string(batch.num_ids) +
                                        "] but got shape " + absent.shape().DebugString());
    }
    bool is_new = false;
    TF_RETURN_IF_ERROR(ReadScalar(context, 6, "is_new", &is_new));
    if (!is_new) return absl::OkStatus();
    shown.absent = absent.flat<uint8_t>().data();
    return ToTensorFlow(store->Admit(batch, shown, DeviceThreads(context)));
  }
};
EMBEDPS_KERNEL(Admit);

REGISTER_OP("EmbedpsAdmissionStats")
    .Input("store: resource")
    .Output("stats: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, 4));
      return absl::OkStatus();
    })
    .Doc("Of each table: counters, their bytes, ids admitted, ids refused.");

class AdmissionStatsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    const std::vector<AdmissionStats> stats = store->StatsOfAdmission();
    Tensor* out;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {static_cast<int64_t>(stats.size()), 4}, &out));
    auto values = out->matrix<int64_t>();
    for (size_t t = 0; t < stats.size(); ++t) {
      values(t, 0) = stats[t].counters;
      values(t, 1) = stats[t].bytes;
      values(t, 2) = stats[t].admitted;
      values(t, 3) = stats[t].refused;
    }
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(AdmissionStats);

}  // namespace
}  // namespace embedps
