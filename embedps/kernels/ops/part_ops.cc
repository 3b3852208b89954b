// Ops that merge the parts of a step, as many as its ranks, into the step's gradients.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "embedps/kernels/lookup/parts.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// Lists the ranks that have examples, and the share of each. A rank without examples has no
// gradients: its loss is a mean over nothing.
absl::Status ReadRanks(OpKernelContext* context, int num_parts, std::vector<int>* ranks,
                       std::vector<float>* weights) {
  const Tensor& examples = context->input(0);
  if (examples.shape() != TensorShape({num_parts})) {
    return absl::InvalidArgumentError("num_examples must be [" + std::to_string(num_parts) +
                                      "] but got " + examples.shape().DebugString());
  }
  const auto counts = examples.vec<int64_t>();
  std::vector<int64_t> present;
  for (int r = 0; r < num_parts; ++r) {
    if (counts(r) < 0) {
      return absl::InvalidArgumentError("num_examples must be at least 0 but got " +
                                        std::to_string(counts(r)));
    }
    if (counts(r) == 0) continue;
    ranks->push_back(r);
    present.push_back(counts(r));
  }
  if (present.empty()) return absl::InvalidArgumentError("a step must have an example");
  *weights = PartWeights(present);
  return absl::OkStatus();
}

REGISTER_OP("EmbedpsMergeRows")
    .Input("num_examples: int64")
    .Input("ids: num_parts * int64")
    .Input("splits: num_parts * int32")
    .Input("gradients: num_parts * float")
    .Input("examples: num_counted * int32")
    .Input("absent: num_counted * uint8")
    .Attr("num_parts: int >= 1")
    .Attr("num_counted: int >= 0")
    .Attr("num_counts: int >= 0")
    .Output("merged_ids: int64")
    .Output("merged_splits: int32")
    .Output("merged_gradients: float")
    .Output("merged_examples: num_counts * int32")
    .Output("merged_absent: num_counts * uint8")
    .SetShapeFn([](InferenceContext* c) {
      int num_parts;
      TF_RETURN_IF_ERROR(c->GetAttr("num_parts", &num_parts));
      const auto any = InferenceContext::kUnknownDim;
      tensorflow::shape_inference::ShapeHandle gradients;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1 + 2 * num_parts), 2, &gradients));
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(any));
      c->set_output(1, c->input(1 + num_parts));
      c->set_output(2, c->Matrix(any, c->Dim(gradients, 1)));
      return absl::OkStatus();
    })
    .Doc(
        "Merges what the ranks of a step ask of one group and shard: the union of their ids by "
        "table, in order of first appearance, and the sums in rank order of each rank's share of "
        "the examples times its gradients. With counts, also sums how many examples show each id, "
        "and marks those that are absent for a rank.");

class MergeRowsOp : public OpKernel {
 public:
  explicit MergeRowsOp(OpKernelConstruction* c) : OpKernel(c) {
    int num_counted, num_counts;
    OP_REQUIRES_OK(c, c->GetAttr("num_parts", &num_parts_));
    OP_REQUIRES_OK(c, c->GetAttr("num_counted", &num_counted));
    OP_REQUIRES_OK(c, c->GetAttr("num_counts", &num_counts));
    counted_ = num_counts > 0;
    OP_REQUIRES(c, num_counted == (counted_ ? num_parts_ : 0) && num_counts <= 1,
                absl::InvalidArgumentError(
                    "num_counted must be num_parts with num_counts 1, or 0 with num_counts 0"));
  }
  void Compute(OpKernelContext* context) override {
    std::vector<int> ranks;
    std::vector<float> weights;
    OP_REQUIRES_OK(context, ReadRanks(context, num_parts_, &ranks, &weights));
    std::vector<RowPart> parts(ranks.size());
    int64_t num_splits = 0, dim = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      OP_REQUIRES_OK(context, ReadPart(context, ranks[i], &num_splits, &dim, &parts[i]));
    }
    const ParallelFor parallel = DeviceThreads(context);
    const MergedIds merged = MergeIds(parts, static_cast<int>(num_splits) - 1, parallel);
    const auto num_ids = static_cast<int64_t>(merged.ids.size());
    Tensor *ids, *splits, *gradients;
    OP_REQUIRES_OK(context, context->allocate_output(0, {num_ids}, &ids));
    OP_REQUIRES_OK(context, context->allocate_output(1, {num_splits}, &splits));
    OP_REQUIRES_OK(context, context->allocate_output(2, {num_ids, dim}, &gradients));
    std::copy(merged.ids.begin(), merged.ids.end(), ids->flat<int64_t>().data());
    std::copy(merged.splits.begin(), merged.splits.end(), splits->flat<int32_t>().data());
    SumRows(parts, weights, merged, static_cast<int>(dim), parallel,
            gradients->flat<float>().data());
    if (!counted_) return;
    Tensor *examples, *absent;
    OP_REQUIRES_OK(context, context->allocate_output(3, {num_ids}, &examples));
    OP_REQUIRES_OK(context, context->allocate_output(4, {num_ids}, &absent));
    SumCounts(parts, merged, examples->flat<int32_t>().data(), absent->flat<uint8_t>().data());
  }

 private:
  // Reads and checks one rank's inputs. The first part sets the number of splits and the dim.
  absl::Status ReadPart(OpKernelContext* context, int rank, int64_t* num_splits, int64_t* dim,
                        RowPart* part) const {
    const Tensor& ids = context->input(1 + rank);
    const Tensor& splits = context->input(1 + num_parts_ + rank);
    const Tensor& gradients = context->input(1 + 2 * num_parts_ + rank);
    const std::string who = "the part of rank " + std::to_string(rank) + ": ";
    if (ids.dims() != 1 || splits.dims() != 1 || splits.NumElements() < 1 ||
        gradients.dims() != 2 || gradients.dim_size(0) != ids.NumElements()) {
      return absl::InvalidArgumentError(
          who + "ids, splits and gradients must be [n], [tables + 1] and [n, dim] but got " +
          ids.shape().DebugString() + ", " + splits.shape().DebugString() + " and " +
          gradients.shape().DebugString());
    }
    if (*num_splits == 0) {
      *num_splits = splits.NumElements();
      *dim = gradients.dim_size(1);
    }
    if (splits.NumElements() != *num_splits || gradients.dim_size(1) != *dim) {
      return absl::InvalidArgumentError(who + "must have " + std::to_string(*num_splits - 1) +
                                        " tables of dim " + std::to_string(*dim) +
                                        ", as the first has, but has " +
                                        std::to_string(splits.NumElements() - 1) + " of dim " +
                                        std::to_string(gradients.dim_size(1)));
    }
    part->ids = ids.flat<int64_t>().data();
    part->num_ids = ids.NumElements();
    part->splits = splits.flat<int32_t>().data();
    part->gradients = gradients.flat<float>().data();
    bool rising = part->splits[0] == 0 && part->splits[*num_splits - 1] == part->num_ids;
    for (int64_t t = 1; t < *num_splits; ++t) rising &= part->splits[t - 1] <= part->splits[t];
    if (!rising) {
      return absl::InvalidArgumentError(
          who + "splits must rise from 0 to " + std::to_string(part->num_ids) +
          ", the number of ids, but got " + splits.SummarizeValue(64));
    }
    if (!counted_) return absl::OkStatus();
    const Tensor& examples = context->input(1 + 3 * num_parts_ + rank);
    const Tensor& absent = context->input(1 + 4 * num_parts_ + rank);
    if (examples.shape() != ids.shape() || absent.shape() != ids.shape()) {
      return absl::InvalidArgumentError(
          who + "examples and absent must be [" + std::to_string(part->num_ids) + "] but got " +
          examples.shape().DebugString() + " and " + absent.shape().DebugString());
    }
    part->examples = examples.flat<int32_t>().data();
    part->absent = absent.flat<uint8_t>().data();
    return absl::OkStatus();
  }

  int num_parts_;
  bool counted_;
};
EMBEDPS_KERNEL(MergeRows);

REGISTER_OP("EmbedpsMergeDense")
    .Input("num_examples: int64")
    .Input("values: num_parts * float")
    .Attr("num_parts: int >= 1")
    .Output("merged: float")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    })
    .Doc("Sums in rank order each rank's share of the examples times its values.");

class MergeDenseOp : public OpKernel {
 public:
  explicit MergeDenseOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("num_parts", &num_parts_));
  }
  void Compute(OpKernelContext* context) override {
    std::vector<int> ranks;
    std::vector<float> weights;
    OP_REQUIRES_OK(context, ReadRanks(context, num_parts_, &ranks, &weights));
    const TensorShape& shape = context->input(1 + ranks[0]).shape();
    std::vector<const float*> values;
    for (const int r : ranks) {
      const Tensor& part = context->input(1 + r);
      OP_REQUIRES(context, part.shape() == shape,
                  absl::InvalidArgumentError(
                      "values must be of one shape but those of rank " + std::to_string(r) +
                      " are " + part.shape().DebugString() + ", the first " + shape.DebugString()));
      values.push_back(part.flat<float>().data());
    }
    Tensor* merged;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &merged));
    SumDense(values, weights, shape.num_elements(), DeviceThreads(context),
             merged->flat<float>().data());
  }

 private:
  int num_parts_;
};
EMBEDPS_KERNEL(MergeDense);

}  // namespace
}  // namespace embedps
