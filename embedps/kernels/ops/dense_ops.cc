// Ops of the dense network for which a fused kernel pays.
#include <string>
#include <vector>

#include "embedps/kernels/dense/interaction.h"
#include "embedps/kernels/dense/ranks.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

InteractionMatrix ToMatrix(const Tensor& tensor) {
  return {tensor.data(), tensor.dtype() == tensorflow::DT_BFLOAT16};
}

// Reads the features' vectors, which must all be [batch, dim].
absl::Status ReadFeatures(OpKernelContext* context, OpInputList* inputs,
                          std::vector<InteractionMatrix>* features) {
  TF_RETURN_IF_ERROR(context->input_list("features", inputs));
  for (int i = 0; i < inputs->size(); ++i) {
    const Tensor& feature = (*inputs)[i];
    if (feature.dims() != 2 || feature.shape() != (*inputs)[0].shape()) {
      return absl::InvalidArgumentError(
          "features must be [batch, dim] of one shape but feature 0 is " +
          (*inputs)[0].shape().DebugString() + " and feature " + std::to_string(i) + " is " +
          feature.shape().DebugString());
    }
    features->push_back(ToMatrix(feature));
  }
  return absl::OkStatus();
}

// Whether to compute an interaction by products of blocks.
bool ByBlocks(const Tensor& interactions, int64_t num_features) {
  return interactions.dtype() == tensorflow::DT_BFLOAT16 && num_features <= kBlock &&
         BlockGemms().back().has_tiles;
}

// Returns roughly the cycles per example.
int64_t Cost(int64_t num_features, int64_t dim) { return num_features * num_features * dim / 8; }

REGISTER_OP("EmbedpsDotInteraction")
    .Input("features: feature_types")
    .Attr("feature_types: list({float, bfloat16}) >= 2")
    .Attr("out_type: {float, bfloat16}")
    .Output("interactions: out_type")
    .SetShapeFn([](InferenceContext* c) {
      const int n = c->num_inputs();
      ShapeHandle merged;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &merged));
      for (int i = 1; i < n; ++i) TF_RETURN_IF_ERROR(c->Merge(merged, c->input(i), &merged));
      c->set_output(0, c->Matrix(c->Dim(merged, 0), NumPairs(n)));
      return absl::OkStatus();
    })
    .Doc(
        "Computes the dot products of every pair of an example's vectors: (1,0), (2,0), (2,1), "
        "...");

class DotInteractionOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    OpInputList inputs;
    std::vector<InteractionMatrix> features;
    OP_REQUIRES_OK(context, ReadFeatures(context, &inputs, &features));
    const int64_t batch = inputs[0].dim_size(0);
    const int dim = static_cast<int>(inputs[0].dim_size(1));
    const int64_t n = inputs.size();
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch, NumPairs(n)}, &out));
    DeviceThreads(context)(batch, Cost(n, dim), [&](int64_t begin, int64_t end) {
      if (ByBlocks(*out, n)) {
        DotInteractionByBlocks(features, dim, begin, end, BlockGemms().back(), ToMatrix(*out));
      } else {
        DotInteraction(features, dim, begin, end, ToMatrix(*out));
      }
    });
  }
};
EMBEDPS_KERNEL(DotInteraction);

REGISTER_OP("EmbedpsDotInteractionGrad")
    .Input("features: feature_types")
    .Input("upstream: out_type")
    .Attr("feature_types: list({float, bfloat16}) >= 2")
    .Attr("out_type: {float, bfloat16}")
    .Output("gradients: feature_types")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < c->num_inputs() - 1; ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    })
    .Doc("Computes the gradient of EmbedpsDotInteraction.");

class DotInteractionGradOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    OpInputList inputs;
    OpOutputList outputs;
    std::vector<InteractionMatrix> features;
    OP_REQUIRES_OK(context, ReadFeatures(context, &inputs, &features));
    OP_REQUIRES_OK(context, context->output_list("gradients", &outputs));
    const int64_t batch = inputs[0].dim_size(0);
    const int dim = static_cast<int>(inputs[0].dim_size(1));
    const int64_t n = inputs.size();
    const Tensor& upstream = context->input(static_cast<int>(n));
    OP_REQUIRES(context, upstream.shape() == TensorShape({batch, NumPairs(n)}),
                absl::InvalidArgumentError("upstream must be [" + std::to_string(batch) + ", " +
                                           std::to_string(NumPairs(n)) + "] but is " +
                                           upstream.shape().DebugString()));
    std::vector<InteractionMatrix> gradients(n);
    for (int i = 0; i < n; ++i) {
      Tensor* out;
      OP_REQUIRES_OK(context, outputs.allocate(i, inputs[i].shape(), &out));
      gradients[i] = ToMatrix(*out);
    }
    DeviceThreads(context)(batch, Cost(n, dim), [&](int64_t begin, int64_t end) {
      if (ByBlocks(upstream, n)) {
        DotInteractionGradientByBlocks(features, ToMatrix(upstream), dim, begin, end,
                                       BlockGemms().back(), gradients);
      } else {
        DotInteractionGradient(features, ToMatrix(upstream), dim, begin, end, gradients);
      }
    });
  }
};
EMBEDPS_KERNEL(DotInteractionGrad);

REGISTER_OP("EmbedpsRanks")
    .Input("queries: float")
    .Input("candidates: float")
    .Input("wanted: int64")
    .Input("wanted_splits: int64")
    .Input("seen: int64")
    .Input("seen_splits: int64")
    .Output("ranks: int64")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(2));
      return absl::OkStatus();
    })
    .Doc("Counts, for each wanted candidate, those that score higher for its query.");

// Checks lists: splits must rise from 0 to the number of values, each below `limit`.
absl::Status CheckLists(const char* name, const Tensor& values, const Tensor& splits,
                        int64_t num_lists, int64_t limit) {
  const auto flat = values.flat<int64_t>();
  const auto at = splits.flat<int64_t>();
  bool right = values.dims() == 1 && splits.dims() == 1 && at.size() == num_lists + 1 &&
               at(0) == 0 && at(num_lists) == flat.size();
  for (int64_t i = 0; right && i < num_lists; ++i) right = at(i) <= at(i + 1);
  if (!right) {
    return absl::InvalidArgumentError(
        std::string(name) + "_splits must rise from 0 to " + std::to_string(flat.size()) + " in " +
        std::to_string(num_lists) + " steps but are " + splits.SummarizeValue(64));
  }
  for (int64_t i = 0; i < flat.size(); ++i) {
    if (flat(i) >= limit) {
      return absl::InvalidArgumentError(std::string(name) + " must be places below " +
                                        std::to_string(limit) + " but has " +
                                        std::to_string(flat(i)));
    }
  }
  return absl::OkStatus();
}

class RanksOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    const Tensor& queries = context->input(0);
    const Tensor& candidates = context->input(1);
    OP_REQUIRES(context,
                queries.dims() == 2 && candidates.dims() == 2 &&
                    queries.dim_size(1) == candidates.dim_size(1),
                absl::InvalidArgumentError(
                    "queries and candidates must be [n, dim] of one dim but are " +
                    queries.shape().DebugString() + " and " + candidates.shape().DebugString()));
    const int64_t batch = queries.dim_size(0), count = candidates.dim_size(0);
    const Tensor& wanted = context->input(2);
    const Tensor& seen = context->input(4);
    OP_REQUIRES_OK(context, CheckLists("wanted", wanted, context->input(3), batch, count));
    OP_REQUIRES_OK(context, CheckLists("seen", seen, context->input(5), batch, count));
    Tensor* ranks;
    OP_REQUIRES_OK(context, context->allocate_output(0, wanted.shape(), &ranks));
    const RankInputs inputs = {
        static_cast<int>(queries.dim_size(1)),
        queries.flat<float>().data(),
        candidates.flat<float>().data(),
        count,
        {wanted.flat<int64_t>().data(), context->input(3).flat<int64_t>().data()},
        {seen.flat<int64_t>().data(), context->input(5).flat<int64_t>().data()}};
    DeviceThreads(context)(batch, count * inputs.dim / 16 + 1, [&](int64_t begin, int64_t end) {
      CountRanks(inputs, begin, end, ranks->flat<int64_t>().data());
    });
  }
};
EMBEDPS_KERNEL(Ranks);

}  // namespace
}  // namespace embedps
