// The bfloat16 multilayer perceptron as TensorFlow ops.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/dense/mlp.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::DataType;
using tensorflow::DT_BFLOAT16;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

MlpMatrix ToMatrix(const Tensor& tensor) {
  return {tensor.data(), tensor.dtype() == DT_BFLOAT16, static_cast<int>(tensor.dim_size(1))};
}

absl::Status CheckMatrix(const char* name, const Tensor& tensor, int64_t rows, int64_t columns) {
  if (tensor.shape() == TensorShape({rows, columns})) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " must be [" + std::to_string(rows) + ", " +
                                    std::to_string(columns) + "] but is " +
                                    tensor.shape().DebugString());
}

// Reads the op's "inputs", each of which must be [batch, width].
absl::Status ReadInputs(OpKernelContext* context, OpInputList* inputs, int64_t* batch,
                        std::vector<MlpMatrix>* matrices, int* width) {
  TF_RETURN_IF_ERROR(context->input_list("inputs", inputs));
  *width = 0;
  for (int i = 0; i < inputs->size(); ++i) {
    const Tensor& input = (*inputs)[i];
    if (input.dims() != 2 || input.dim_size(0) != (*inputs)[0].dim_size(0)) {
      return absl::InvalidArgumentError("inputs must be [batch, width] of one batch but input " +
                                        std::to_string(i) + " is " + input.shape().DebugString());
    }
    matrices->push_back(ToMatrix(input));
    *width += matrices->back().width;
  }
  *batch = (*inputs)[0].dim_size(0);
  return absl::OkStatus();
}

// Reads the op's "kernels". Each must have as many rows as the one before has columns.
absl::Status ReadKernels(OpKernelContext* context, int width, std::vector<MlpLayer>* layers) {
  OpInputList kernels;
  TF_RETURN_IF_ERROR(context->input_list("kernels", &kernels));
  for (int l = 0; l < kernels.size(); ++l) {
    if (kernels[l].dims() != 2 || kernels[l].dim_size(0) != width || kernels[l].dim_size(1) < 1) {
      return absl::InvalidArgumentError("kernel " + std::to_string(l) + " must be [" +
                                        std::to_string(width) + ", units] but is " +
                                        kernels[l].shape().DebugString());
    }
    MlpLayer layer;
    layer.num_inputs = width;
    layer.num_outputs = width = static_cast<int>(kernels[l].dim_size(1));
    layer.kernel = kernels[l].flat<float>().data();
    layers->push_back(layer);
  }
  return absl::OkStatus();
}

// Allocates temporary memory for bfloat16 values.
absl::Status Allocate(OpKernelContext* context, int64_t size, Tensor* tensor, Bf16** data) {
  TF_RETURN_IF_ERROR(context->allocate_temp(DT_BFLOAT16, {size}, tensor));
  *data = static_cast<Bf16*>(tensor->data());
  return absl::OkStatus();
}

REGISTER_OP("EmbedpsMlp")
    .Input("inputs: input_types")
    .Input("kernels: num_layers * float")
    .Input("biases: num_layers * float")
    .Attr("input_types: list({float, bfloat16}) >= 1")
    .Attr("num_layers: int >= 1")
    .Attr("final_relu: bool")
    .Attr("out_type: {float, bfloat16}")
    .Output("out: out_type")
    .Output("saved: bfloat16")
    .SetShapeFn([](InferenceContext* c) {
      int num_layers;
      TF_RETURN_IF_ERROR(c->GetAttr("num_layers", &num_layers));
      const int first_bias = c->num_inputs() - num_layers;
      tensorflow::shape_inference::ShapeHandle input, bias;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &input));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(first_bias + num_layers - 1), 1, &bias));
      c->set_output(0, c->Matrix(c->Dim(input, 0), c->Dim(bias, 0)));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(
        "Computes layers of bfloat16 products with ReLU between them, of inputs side by side. "
        "saved: an input of EmbedpsMlpGrad.");

class MlpOp : public OpKernel {
 public:
  explicit MlpOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("final_relu", &final_relu_));
  }
  void Compute(OpKernelContext* context) override {
    OpInputList inputs, biases;
    std::vector<MlpMatrix> matrices;
    std::vector<MlpLayer> layers;
    int64_t batch;
    int width;
    OP_REQUIRES_OK(context, ReadInputs(context, &inputs, &batch, &matrices, &width));
    OP_REQUIRES_OK(context, ReadKernels(context, width, &layers));
    OP_REQUIRES_OK(context, context->input_list("biases", &biases));
    for (size_t l = 0; l < layers.size(); ++l) {
      const int i = static_cast<int>(l);
      OP_REQUIRES(context, biases[i].shape() == TensorShape({layers[l].num_outputs}),
                  absl::InvalidArgumentError("bias " + std::to_string(l) + " must be [" +
                                             std::to_string(layers[l].num_outputs) + "] but is " +
                                             biases[i].shape().DebugString()));
      layers[l].bias = biases[i].flat<float>().data();
    }
    const Mlp mlp(layers, final_relu_, BlockGemms().back());
    Tensor *out, *saved, scratch;
    Bf16* scratch_data;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch, layers.back().num_outputs}, &out));
    OP_REQUIRES_OK(context, context->allocate_output(1, {mlp.SavedSize(batch)}, &saved));
    OP_REQUIRES_OK(context, Allocate(context, mlp.ForwardScratchSize(), &scratch, &scratch_data));
    if (batch == 0) return;
    mlp.Forward(matrices, batch, DeviceThreads(context), scratch_data,
                static_cast<Bf16*>(saved->data()), ToMatrix(*out));
  }

 private:
  bool final_relu_;
};
EMBEDPS_KERNEL(Mlp);

REGISTER_OP("EmbedpsMlpGrad")
    .Input("upstream: out_type")
    .Input("inputs: input_types")
    .Input("kernels: num_layers * float")
    .Input("saved: bfloat16")
    .Attr("input_types: list({float, bfloat16}) >= 1")
    .Attr("num_layers: int >= 1")
    .Attr("final_relu: bool")
    .Attr("out_type: {float, bfloat16}")
    .Attr("gradient_types: list({float, bfloat16}) >= 0")
    .Output("input_gradients: gradient_types")
    .Output("kernel_gradients: num_layers * float")
    .Output("bias_gradients: num_layers * float")
    .SetShapeFn([](InferenceContext* c) {
      int num_layers;
      TF_RETURN_IF_ERROR(c->GetAttr("num_layers", &num_layers));
      const int num_inputs = c->num_inputs() - num_layers - 2;
      const int num_gradients = c->num_outputs() - 2 * num_layers;
      for (int i = 0; i < std::min(num_gradients, num_inputs); ++i) {
        c->set_output(i, c->input(1 + i));
      }
      for (int l = 0; l < num_layers; ++l) {
        tensorflow::shape_inference::ShapeHandle kernel;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(1 + num_inputs + l), 2, &kernel));
        c->set_output(num_gradients + l, kernel);
        c->set_output(num_gradients + num_layers + l, c->Vector(c->Dim(kernel, 1)));
      }
      return absl::OkStatus();
    })
    .Doc(
        "Computes the gradient of EmbedpsMlp. Uses only the shapes of inputs. gradient_types: the "
        "types of the inputs, or none to skip their gradients.");

class MlpGradOp : public OpKernel {
 public:
  explicit MlpGradOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("final_relu", &final_relu_));
  }
  void Compute(OpKernelContext* context) override {
    OpInputList inputs, upstream, saved;
    OpOutputList input_gradients, kernel_gradients, bias_gradients;
    std::vector<MlpMatrix> matrices;
    std::vector<MlpLayer> layers;
    int64_t batch;
    int width;
    OP_REQUIRES_OK(context, ReadInputs(context, &inputs, &batch, &matrices, &width));
    OP_REQUIRES_OK(context, ReadKernels(context, width, &layers));
    OP_REQUIRES_OK(context, context->input_list("upstream", &upstream));
    OP_REQUIRES_OK(context, context->input_list("saved", &saved));
    OP_REQUIRES_OK(context, context->output_list("input_gradients", &input_gradients));
    OP_REQUIRES_OK(context, context->output_list("kernel_gradients", &kernel_gradients));
    OP_REQUIRES_OK(context, context->output_list("bias_gradients", &bias_gradients));
    OP_REQUIRES_OK(context, CheckMatrix("upstream", upstream[0], batch, layers.back().num_outputs));
    const Mlp mlp(layers, final_relu_, BlockGemms().back());
    OP_REQUIRES(context, saved[0].shape() == TensorShape({mlp.SavedSize(batch)}),
                absl::InvalidArgumentError("saved must be the output of EmbedpsMlp, [" +
                                           std::to_string(mlp.SavedSize(batch)) + "], but is " +
                                           saved[0].shape().DebugString()));
    OP_REQUIRES(context, input_gradients.size() == 0 || input_gradients.size() == inputs.size(),
                absl::InvalidArgumentError("gradient_types must be none or as many as the " +
                                           std::to_string(inputs.size()) + " inputs but are " +
                                           std::to_string(input_gradients.size())));
    std::vector<MlpMatrix> to_inputs;
    for (int i = 0; i < input_gradients.size(); ++i) {
      Tensor* out;
      OP_REQUIRES_OK(context, input_gradients.allocate(i, inputs[i].shape(), &out));
      to_inputs.push_back(ToMatrix(*out));
    }
    std::vector<MlpLayerGradient> gradients;
    for (size_t l = 0; l < layers.size(); ++l) {
      const int i = static_cast<int>(l);
      Tensor *kernel, *bias;
      OP_REQUIRES_OK(context, kernel_gradients.allocate(
                                  i, {layers[l].num_inputs, layers[l].num_outputs}, &kernel));
      OP_REQUIRES_OK(context, bias_gradients.allocate(i, {layers[l].num_outputs}, &bias));
      gradients.push_back({kernel->flat<float>().data(), bias->flat<float>().data()});
    }
    Tensor scratch;
    Bf16* scratch_data;
    OP_REQUIRES_OK(context,
                   Allocate(context, mlp.BackwardScratchSize(batch), &scratch, &scratch_data));
    mlp.Backward(ToMatrix(upstream[0]), static_cast<const Bf16*>(saved[0].data()), batch,
                 DeviceThreads(context), scratch_data, to_inputs, gradients);
  }

 private:
  bool final_relu_;
};
EMBEDPS_KERNEL(MlpGrad);

}  // namespace
}  // namespace embedps
