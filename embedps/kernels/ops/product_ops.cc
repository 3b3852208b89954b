// Twins of TensorFlow's products and softmax that give a row the same bits in any batch; see
// dense/product.h. Names of attributes and outputs are TensorFlow's, so a graph's node becomes one
// by another op name.
#include <vector>

#include "embedps/kernels/dense/product.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/util/matmul_bcast.h"

namespace embedps {
namespace {

using tensorflow::DT_FLOAT;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("EmbedpsMatMul")
    .Input("a: T")
    .Input("b: T")
    .Output("product: T")
    .Attr("transpose_a: bool = false")
    .Attr("transpose_b: bool = false")
    .Attr("T: {float}")
    .Attr("grad_a: bool = false")
    .Attr("grad_b: bool = false")
    .SetShapeFn(tensorflow::shape_inference::MatMulShape)
    .Doc("MatMul, with the same bits in any batch.");

REGISTER_OP("EmbedpsBatchMatMulV2")
    .Input("x: T")
    .Input("y: T")
    .Output("output: T")
    .Attr("T: {float}")
    .Attr("adj_x: bool = false")
    .Attr("adj_y: bool = false")
    .Attr("grad_x: bool = false")
    .Attr("grad_y: bool = false")
    .SetShapeFn(tensorflow::shape_inference::BatchMatMulV2Shape)
    .Doc("BatchMatMulV2, with the same bits in any batch.");

REGISTER_OP("EmbedpsSoftmax")
    .Input("logits: T")
    .Output("softmax: T")
    .Attr("T: {float}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Softmax, with the same bits in any batch.");

REGISTER_OP("EmbedpsLogSoftmax")
    .Input("logits: T")
    .Output("logsoftmax: T")
    .Attr("T: {float}")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("LogSoftmax, with the same bits in any batch.");

// Returns the transposed [rows, columns] matrix.
std::vector<float> Transposed(const float* from, int64_t rows, int64_t columns) {
  std::vector<float> to(rows * columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
  }
  return to;
}

// Returns which of an input's `size` matrices is multiplied for matrix `batch` of the product.
int64_t Place(int64_t batch, int64_t size, const std::vector<int64_t>& broadcast) {
  return size == 1 ? 0 : broadcast.empty() ? batch : broadcast[batch];
}

class ProductOp : public OpKernel {
 public:
  ProductOp(OpKernelConstruction* context, const char* left, const char* right)
      : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr(left, &transpose_left_));
    OP_REQUIRES_OK(context, context->GetAttr(right, &transpose_right_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &left = context->input(0), &right = context->input(1);
    OP_REQUIRES(context, left.dims() >= 2 && right.dims() >= 2,
                absl::InvalidArgumentError("a product is of matrices but the inputs are " +
                                           left.shape().DebugString() + " and " +
                                           right.shape().DebugString()));
    const tensorflow::MatMulBCast bcast(left.shape().dim_sizes(), right.shape().dim_sizes());
    OP_REQUIRES(
        context, bcast.IsValid(),
        absl::InvalidArgumentError("batches of matrices do not fit: " + left.shape().DebugString() +
                                   " and " + right.shape().DebugString()));
    const int64_t left_rows = left.dim_size(left.dims() - 2);
    const int64_t left_columns = left.dim_size(left.dims() - 1);
    const int64_t right_rows = right.dim_size(right.dims() - 2);
    const int64_t right_columns = right.dim_size(right.dims() - 1);
    const int64_t rows = transpose_left_ ? left_columns : left_rows;
    const int64_t inner = transpose_left_ ? left_rows : left_columns;
    const int64_t columns = transpose_right_ ? right_rows : right_columns;
    OP_REQUIRES(context, inner == (transpose_right_ ? right_columns : right_rows),
                absl::InvalidArgumentError(
                    "the matrices of a product do not fit: " + left.shape().DebugString() +
                    " and " + right.shape().DebugString()));
    TensorShape shape = bcast.output_batch_shape();
    shape.AddDim(rows);
    shape.AddDim(columns);
    Tensor* product = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &product));
    if (shape.num_elements() == 0) return;
    const float* a = left.flat<float>().data();
    const float* b = right.flat<float>().data();
    float* out = product->flat<float>().data();
    const int64_t panels = NumPanels(columns), tasks = NumChunks(rows) * panels;
    const int64_t cost = std::min(rows, kChunkRows) * inner;  // cycles of a task, roughly
    const int64_t batches = bcast.output_batch_size();
    const ParallelFor parallel = DeviceThreads(context);

    const auto multiply = [&](int64_t batch, const ParallelFor& within, float* packed) {
      const float* x =
          a + Place(batch, bcast.x_batch_size(), bcast.x_batch_indices()) * rows * inner;
      const float* y =
          b + Place(batch, bcast.y_batch_size(), bcast.y_batch_indices()) * inner * columns;
      std::vector<float> turned;
      if (transpose_left_) {
        turned = Transposed(x, inner, rows);
        x = turned.data();
      }
      within(panels, inner * kPanelColumns, [&](int64_t begin, int64_t end) {
        PackPanels(y, inner, columns, transpose_right_, begin, end, packed);
      });
      within(tasks, cost, [&](int64_t begin, int64_t end) {
        MultiplyTasks(ProductTiles().back(), x, packed, rows, inner, columns, begin, end,
                      out + batch * rows * columns);
      });
    };

    const int64_t packed_size = panels * inner * kPanelColumns;
    if (batches == 1) {
      Tensor packed;
      OP_REQUIRES_OK(context, context->allocate_temp(DT_FLOAT, {packed_size}, &packed));
      multiply(0, parallel, packed.flat<float>().data());
      return;
    }
    parallel(batches, tasks * cost + packed_size, [&](int64_t begin, int64_t end) {
      std::vector<float> packed(packed_size);
      for (int64_t batch = begin; batch < end; ++batch) multiply(batch, SerialFor, packed.data());
    });
  }

 private:
  bool transpose_left_ = false;
  bool transpose_right_ = false;
};

class MatMulOp : public ProductOp {
 public:
  explicit MatMulOp(OpKernelConstruction* context)
      : ProductOp(context, "transpose_a", "transpose_b") {}
};

class BatchMatMulV2Op : public ProductOp {
 public:
  explicit BatchMatMulV2Op(OpKernelConstruction* context) : ProductOp(context, "adj_x", "adj_y") {}
};

template <bool kLog>
class SoftmaxOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& logits = context->input(0);
    OP_REQUIRES(context, logits.dims() >= 1,
                absl::InvalidArgumentError("the logits of a softmax have no dimension"));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, logits.shape(), &out));
    if (logits.NumElements() == 0) return;
    const int64_t columns = logits.dim_size(logits.dims() - 1);
    const float* from = logits.flat<float>().data();
    float* to = out->flat<float>().data();
    DeviceThreads(context)(
        logits.NumElements() / columns, columns * 20, [&](int64_t begin, int64_t end) {
          SoftmaxRows(from + begin * columns, end - begin, columns, kLog, to + begin * columns);
        });
  }
};

EMBEDPS_KERNEL(MatMul);
EMBEDPS_KERNEL(BatchMatMulV2);
REGISTER_KERNEL_BUILDER(Name("EmbedpsSoftmax").Device(tensorflow::DEVICE_CPU), SoftmaxOp<false>);
REGISTER_KERNEL_BUILDER(Name("EmbedpsLogSoftmax").Device(tensorflow::DEVICE_CPU), SoftmaxOp<true>);

}  // namespace
}  // namespace embedps
