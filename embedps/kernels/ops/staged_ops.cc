// Ops on records that EmbedpsStageRows read for a store.
#include <algorithm>
#include <memory>

#include "embedps/kernels/ops/file_op.h"
#include "embedps/kernels/ops/staged_resource.h"
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
using tensorflow::shape_inference::ShapeHandle;

using StagedPtr = tensorflow::core::RefCountPtr<StagedResource>;

// Finds input 1, what was staged, and checks that it fits the store.
absl::Status FindStaged(OpKernelContext* context, const RowStore& store, StagedPtr* staged) {
  TF_RETURN_IF_ERROR(
      tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 1), staged));
  if (store.CanApply((*staged)->rows)) return absl::OkStatus();
  return absl::InvalidArgumentError("staged must be of group '" + store.config().group +
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

class ShowRowsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    StagedPtr staged;
    TF_RETURN_IF_ERROR(FindStaged(context, *store, &staged));
    StagedResource* const held = staged.release();
    const auto release = [held](const StagedRows*) { held->Unref(); };
    store->Show(std::shared_ptr<const StagedRows>(&held->rows, release));
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(ShowRows);

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
  absl::Status Work(OpKernelContext* context, RowStore* store) override {
    StagedPtr staged;
    TF_RETURN_IF_ERROR(FindStaged(context, *store, &staged));
    store->Apply(staged->rows, SerialFor);
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(ApplyRows);

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

class LookupStagedOp : public StoreOp {
 public:
  explicit LookupStagedOp(OpKernelConstruction* c) : StoreOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("dim", &dim_));
  }
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    StagedPtr staged;
    TF_RETURN_IF_ERROR(FindStaged(context, *store, &staged));
    IdsByTable batch;
    float* rows;
    TF_RETURN_IF_ERROR(BeginLookup(context, 2, *store, dim_, &batch, &rows));
    store->LookupStaged(batch, staged->rows, DeviceThreads(context), rows);
    return absl::OkStatus();
  }

 private:
  int dim_;
};
EMBEDPS_KERNEL(LookupStaged);

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

class StagedIdsOp : public TableOp {
 public:
  using TableOp::TableOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    StagedPtr staged;
    TF_RETURN_IF_ERROR(FindStaged(context, *store, &staged));
    const auto [first, last] = staged->rows.RangeOf(table_);
    const RowColumns& columns = staged->rows.columns();
    Tensor *ids, *removed, *differs;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {last - first}, &ids));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {last - first}, &removed));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {last - first}, &differs));
    std::copy(columns.id.begin() + first, columns.id.begin() + last, ids->flat<int64_t>().data());
    std::copy(columns.removed.begin() + first, columns.removed.begin() + last,
              removed->flat<bool>().data());
    store->CompareStaged(table_, staged->rows, DeviceThreads(context),
                         differs->flat<bool>().data());
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(StagedIds);

}  // namespace
}  // namespace embedps
