// Ops on records that EmbedpsStageRows read for a store.
#include <algorithm>
#include <memory>

#include "embedps/kernels/ops/file_op.h"
#include "embedps/kernels/ops/staged_resource.h"
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
using tensorflow::shape_inference::ShapeHandle;

using StagedPtr = tensorflow::core::RefCountPtr<StagedResource>;

// Finds the inputs `store` and `staged`, the first two, and checks that they fit.
absl::Status FindStaged(OpKernelContext* context, StorePtr* store, StagedPtr* staged) {
  TF_RETURN_IF_ERROR(FindStore(context, store));
  TF_RETURN_IF_ERROR(
      tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 1), staged));
  if ((*store)->store.CanApply((*staged)->rows)) return absl::OkStatus();
  return absl::InvalidArgumentError("staged must be of group '" + (*store)->store.config().group +
                                    "' but has other tables or another dim");
}

REGISTER_OP("EmbedpsShowRows")
    .Input("store: resource")
    .Input("staged: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(
        "Makes lookups without insert read the records that EmbedpsStageRows read for this store, "
        "until EmbedpsApplyRows has applied them. No lookup may run meanwhile.");

class ShowRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr store;
    StagedPtr staged;
    OP_REQUIRES_OK(context, FindStaged(context, &store, &staged));
    StagedResource* const held = staged.release();
    const auto release = [held](const StagedRows*) { held->Unref(); };
    store->store.Show(std::shared_ptr<const StagedRows>(&held->rows, release));
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsShowRows").Device(tensorflow::DEVICE_CPU), ShowRowsOp);

REGISTER_OP("EmbedpsApplyRows")
    .Input("store: resource")
    .Input("staged: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(
        "Loads the records that EmbedpsStageRows read for this store, by a nice thread. It reads "
        "no files.");

class ApplyRowsOp : public FileOp {
 public:
  explicit ApplyRowsOp(OpKernelConstruction* c) : FileOp(c) { niceness_ = kFileNiceness; }
  absl::Status Work(OpKernelContext* context) override {
    StorePtr store;
    StagedPtr staged;
    TF_RETURN_IF_ERROR(FindStaged(context, &store, &staged));
    store->store.Apply(staged->rows, SerialFor);
    return absl::OkStatus();
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsApplyRows").Device(tensorflow::DEVICE_CPU), ApplyRowsOp);

REGISTER_OP("EmbedpsLookupStaged")
    .Input("store: resource")
    .Input("staged: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .Attr("dim: int >= 1")
    .Output("rows: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return SetRowsShape(c, 2); })
    .Doc("Reads rows as EmbedpsLookup without insert will once `staged` is applied.");

class LookupStagedOp : public OpKernel {
 public:
  explicit LookupStagedOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("dim", &dim_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr store;
    StagedPtr staged;
    OP_REQUIRES_OK(context, FindStaged(context, &store, &staged));
    IdsByTable batch;
    float* rows;
    OP_REQUIRES_OK(context, BeginLookup(context, 2, store->store, dim_, &batch, &rows));
    store->store.LookupStaged(batch, staged->rows, DeviceThreads(context), rows);
  }

 private:
  int dim_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsLookupStaged").Device(tensorflow::DEVICE_CPU), LookupStagedOp);

REGISTER_OP("EmbedpsStagedIds")
    .Input("store: resource")
    .Input("staged: resource")
    .Attr("table: int >= 0")
    .Output("ids: int64")
    .Output("removed: bool")
    .Output("differs: bool")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      const ShapeHandle ids = c->Vector(InferenceContext::kUnknownDim);
      for (int i = 0; i < 3; ++i) c->set_output(i, ids);
      return absl::OkStatus();
    })
    .Doc(
        "Lists the staged ids of a table, each once; whether their rows go; and whether they will "
        "be read as other bits than now.");

class StagedIdsOp : public OpKernel {
 public:
  explicit StagedIdsOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("table", &table_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr store;
    StagedPtr staged;
    OP_REQUIRES_OK(context, FindStaged(context, &store, &staged));
    OP_REQUIRES_OK(context, CheckTable(store->store, table_));
    const auto [first, last] = staged->rows.RangeOf(table_);
    const RowColumns& columns = staged->rows.columns();
    Tensor *ids, *removed, *differs;
    OP_REQUIRES_OK(context, context->allocate_output(0, {last - first}, &ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, {last - first}, &removed));
    OP_REQUIRES_OK(context, context->allocate_output(2, {last - first}, &differs));
    std::copy(columns.id.begin() + first, columns.id.begin() + last, ids->flat<int64_t>().data());
    std::copy(columns.removed.begin() + first, columns.removed.begin() + last,
              removed->flat<bool>().data());
    store->store.CompareStaged(table_, staged->rows, DeviceThreads(context),
                               differs->flat<bool>().data());
  }

 private:
  int table_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsStagedIds").Device(tensorflow::DEVICE_CPU), StagedIdsOp);

}  // namespace
}  // namespace embedps
