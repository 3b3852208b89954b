// Ids of texts.
#include "embedps/kernels/files/fingerprint.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace embedps {
namespace {

REGISTER_OP("EmbedpsFingerprint")
    .Input("texts: string")
    .Output("ids: int64")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Hashes texts to ids.");

class FingerprintOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& texts = context->input(0);
    tensorflow::Tensor* ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, texts.shape(), &ids));
    const auto from = texts.flat<tensorflow::tstring>();
    auto to = ids->flat<int64_t>();
    for (int64_t i = 0; i < from.size(); ++i) to(i) = Fingerprint(from(i).data(), from(i).size());
  }
};
EMBEDPS_KERNEL(Fingerprint);

}  // namespace
}  // namespace embedps
