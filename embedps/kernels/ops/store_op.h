// An op on a store, its input 0.
#ifndef EMBEDPS_KERNELS_OPS_STORE_OP_H_
#define EMBEDPS_KERNELS_OPS_STORE_OP_H_

#include "embedps/kernels/ops/store_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace embedps {

class StoreOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext* context) final {
    StorePtr found;
    OP_REQUIRES_OK(context, FindStore(context, &found));
    OP_REQUIRES_OK(context, Check(found->store));
    OP_REQUIRES_OK(context, Run(context, &found->store));
    OP_REQUIRES_OK(context, ToTensorFlow(found->store.failure()));
  }

 protected:
  virtual absl::Status Check(const RowStore& store) const { return absl::OkStatus(); }
  virtual absl::Status Run(tensorflow::OpKernelContext* context, RowStore* store) = 0;
};

// An op on one of the store's tables, its attribute `table`.
class TableOp : public StoreOp {
 public:
  explicit TableOp(tensorflow::OpKernelConstruction* c) : StoreOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("table", &table_));
  }

 protected:
  absl::Status Check(const RowStore& store) const final { return CheckTable(store, table_); }

  int table_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_STORE_OP_H_
