// The tensors of a worker's part of a step, and how a server adds up those of several parts.
#ifndef EMBEDPS_KERNELS_OPS_PART_TENSORS_H_
#define EMBEDPS_KERNELS_OPS_PART_TENSORS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/lookup/parts.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {

// What a worker computed of its part of a step.
struct StepPart {
  int64_t num_rows = 0;     // of its batch
  float learning_rate = 0;  // of the tables, where parts of several steps are applied together
  std::vector<tensorflow::Tensor> tensors;  // as `PartTensors` has them
};

// An attempt's right to apply a step. If the attempt ends before it has, the right passes on.
class StepTurn : public tensorflow::ResourceBase {
 public:
  // One of the functions is called, once; `kept` lives until then.
  StepTurn(tensorflow::ResourceBase* kept, std::function<void()> applied,
           std::function<void()> abandoned)
      : kept_(kept), on_applied_(std::move(applied)), on_abandoned_(std::move(abandoned)) {
    kept->Ref();
  }
  ~StepTurn() override {
    if (!applied_) on_abandoned_();
  }
  std::string DebugString() const override { return "embedps turn to apply a step"; }

  void Applied() {
    if (applied_) return;
    applied_ = true;
    on_applied_();
  }

 private:
  const tensorflow::core::RefCountPtr<tensorflow::ResourceBase> kept_;
  const std::function<void()> on_applied_, on_abandoned_;
  bool applied_ = false;
};

// The shapes of what `PartTensors` sets.
inline absl::Status SetPartShapes(tensorflow::shape_inference::InferenceContext* c, int first_input,
                                  int first_output) {
  int num_stores, num_counted;
  TF_RETURN_IF_ERROR(c->GetAttr("num_stores", &num_stores));
  TF_RETURN_IF_ERROR(c->GetAttr("num_counted", &num_counted));
  int out = first_output, in = first_input;
  const auto vector = c->Vector(tensorflow::shape_inference::InferenceContext::kUnknownDim);
  for (int i = 0; i < num_stores; ++i, ++in) c->set_output(out++, vector);
  for (int i = 0; i < num_stores; ++i, ++in) c->set_output(out++, c->input(in));
  for (int i = 0; i < num_stores; ++i, ++in) {
    tensorflow::shape_inference::ShapeHandle gradients;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(in), 2, &gradients));
    c->set_output(out++, c->Matrix(c->UnknownDim(), c->Dim(gradients, 1)));
  }
  for (int i = 0; i < 2 * num_counted; ++i, ++in) c->set_output(out++, vector);
  for (; in < c->num_inputs(); ++in) c->set_output(out++, c->input(in));
  return absl::OkStatus();
}

// The tensors of parts are by store ids, splits and gradients, by counted store examples and
// absent, and then dense ones. An op has them as its last inputs and outputs; `first_input` and
// `first_output` say from where on.
class PartTensors {
 public:
  using Tensor = tensorflow::Tensor;
  using OpKernelContext = tensorflow::OpKernelContext;
  using Parts = std::vector<std::shared_ptr<const StepPart>>;

  absl::Status Init(tensorflow::OpKernelConstruction* c) {
    TF_RETURN_IF_ERROR(c->GetAttr("num_stores", &num_stores_));
    TF_RETURN_IF_ERROR(c->GetAttr("num_counted", &num_counted_));
    TF_RETURN_IF_ERROR(c->GetAttr("counted", &counted_));
    if (static_cast<int>(counted_.size()) != num_counted_) {
      return absl::InvalidArgumentError("counted must have num_counted stores");
    }
    for (const int store : counted_) {
      if (store < 0 || store >= num_stores_) {
        return absl::InvalidArgumentError("counted must be stores");
      }
    }
    return absl::OkStatus();
  }

  // Gets a part's tensors, and checks their shapes.
  absl::Status Read(OpKernelContext* context, int first_input, StepPart* part) const {
    if (part->num_rows < 1) {
      return absl::InvalidArgumentError("num_rows must be at least 1 but is " +
                                        std::to_string(part->num_rows));
    }
    for (int i = first_input; i < context->num_inputs(); ++i) {
      part->tensors.push_back(context->input(i));
    }
    return CheckRows(part->tensors);
  }

  // Sets the first two outputs: whether the caller must apply the sums of parts, and its turn to do
  // so, which calls `applied` or `abandoned`. Then sets the sums or, if there are no parts, no rows
  // and the op's own dense tensors.
  absl::Status SetSums(OpKernelContext* context, const Parts& parts, tensorflow::ResourceBase* kept,
                       std::function<void()> applied, std::function<void()> abandoned,
                       int first_input, int first_output) const {
    // Before anything can fail: an error gives the turn back.
    TF_RETURN_IF_ERROR(SetTurn(
        context,
        parts.empty() ? nullptr : new StepTurn(kept, std::move(applied), std::move(abandoned))));
    return parts.empty() ? SetOwn(context, first_input, first_output)
                         : SetMerged(context, parts, first_output);
  }

 private:
  enum { kIds, kSplits, kGradients, kExamples, kAbsent };

  // The index of a store's tensor among those of a part; `kExamples` and `kAbsent` of the i-th that
  // is counted.
  int At(int kind, int i) const {
    return std::min(kind, 3) * num_stores_ + std::max(kind - 3, 0) * num_counted_ + i;
  }
  int FirstDense() const { return 3 * num_stores_ + 2 * num_counted_; }

  absl::Status CheckRows(const std::vector<Tensor>& tensors) const {
    for (int i = 0; i < num_stores_; ++i) {
      const Tensor& ids = tensors[At(kIds, i)];
      const Tensor& splits = tensors[At(kSplits, i)];
      const Tensor& gradients = tensors[At(kGradients, i)];
      const auto wrong = [i](const std::string& what, const Tensor& got) {
        return absl::InvalidArgumentError("store " + std::to_string(i) + ": " + what +
                                          " but got shape " + got.shape().DebugString());
      };
      if (ids.dims() != 1) return wrong("ids must be of rank 1", ids);
      if (splits.dims() != 1 || splits.NumElements() < 1) {
        return wrong("splits must be [num_tables + 1]", splits);
      }
      const int64_t num_ids = ids.NumElements();
      if (gradients.dims() != 2 || gradients.dim_size(0) != num_ids) {
        return wrong("gradients must be [" + std::to_string(num_ids) + ", dim]", gradients);
      }
      const int32_t* at = splits.flat<int32_t>().data();
      const int64_t n = splits.NumElements();
      if (at[0] != 0 || at[n - 1] != num_ids || !std::is_sorted(at, at + n)) {
        return absl::InvalidArgumentError("store " + std::to_string(i) +
                                          ": splits must rise from 0 to " +
                                          std::to_string(num_ids) + ", the number of ids");
      }
    }
    for (int i = 0; i < num_counted_; ++i) {
      const int64_t num_ids = tensors[At(kIds, counted_[i])].NumElements();
      for (const int kind : {kExamples, kAbsent}) {
        if (tensors[At(kind, i)].NumElements() != num_ids) {
          return absl::InvalidArgumentError("examples and absent must be [" +
                                            std::to_string(num_ids) + "], as many as ids");
        }
      }
    }
    return absl::OkStatus();
  }

  // Sets the outputs to no rows and the op's own dense tensors.
  absl::Status SetOwn(OpKernelContext* context, int first_input, int first_output) const {
    for (int i = 0; i < FirstDense(); ++i) {
      tensorflow::TensorShape shape = context->input(first_input + i).shape();
      const bool is_splits = i >= At(kSplits, 0) && i < At(kGradients, 0);
      if (!is_splits) shape.set_dim(0, 0);
      Tensor* out;
      TF_RETURN_IF_ERROR(context->allocate_output(first_output + i, shape, &out));
      if (is_splits) out->flat<int32_t>().setZero();
    }
    for (int i = FirstDense(); i < context->num_inputs() - first_input; ++i) {
      context->set_output(first_output + i, context->input(first_input + i));
    }
    return absl::OkStatus();
  }

  // Sets the outputs to the sums over the parts.
  absl::Status SetMerged(OpKernelContext* context, const Parts& parts, int first_output) const {
    TF_RETURN_IF_ERROR(CheckAlike(parts));
    std::vector<int64_t> num_rows;
    for (const auto& part : parts) num_rows.push_back(part->num_rows);
    const std::vector<float> weights = PartWeights(num_rows);
    for (int i = 0; i < num_stores_; ++i) {
      TF_RETURN_IF_ERROR(SetRows(context, parts, weights, first_output, i));
    }
    for (int i = FirstDense(); i < static_cast<int>(parts[0]->tensors.size()); ++i) {
      TF_RETURN_IF_ERROR(SetDense(context, parts, weights, first_output, i));
    }
    return absl::OkStatus();
  }

  static absl::Status SetTurn(OpKernelContext* context, StepTurn* turn) {
    tensorflow::ResourceHandle handle;
    if (turn != nullptr) {
      handle = tensorflow::ResourceHandle::MakeRefCountingHandle(turn, context->device()->name(),
                                                                 {}, {});
    }
    Tensor *is_complete, *out;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &is_complete));
    is_complete->scalar<bool>()() = turn != nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &out));
    out->scalar<tensorflow::ResourceHandle>()() = handle;
    return absl::OkStatus();
  }

  // All parts of a step must have the tensors of one graph.
  absl::Status CheckAlike(const Parts& parts) const {
    const std::vector<Tensor>& first = parts[0]->tensors;
    for (const auto& part : parts) {
      bool alike = part->tensors.size() == first.size();
      for (size_t i = 0; alike && i < first.size(); ++i) {
        const Tensor &one = first[i], &other = part->tensors[i];
        alike = one.dtype() == other.dtype() && one.dims() == other.dims();
        const int kind =
            static_cast<int>(i) < 3 * num_stores_ ? static_cast<int>(i) / num_stores_ : -1;
        if (kind == kSplits) alike = alike && one.shape() == other.shape();
        if (kind == kGradients) alike = alike && one.dim_size(1) == other.dim_size(1);
        if (static_cast<int>(i) >= FirstDense()) alike = alike && one.shape() == other.shape();
      }
      if (!alike) {
        return absl::InvalidArgumentError(
            "the parts of a step must have tensors of the same shapes");
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetRows(OpKernelContext* context, const Parts& parts,
                       const std::vector<float>& weights, int first_output, int store) const {
    const ParallelFor parallel = DeviceThreads(context);
    const auto at = std::find(counted_.begin(), counted_.end(), store);
    const int counted = at == counted_.end() ? -1 : static_cast<int>(at - counted_.begin());
    std::vector<RowPart> rows;
    for (const auto& part : parts) {
      const std::vector<Tensor>& tensors = part->tensors;
      RowPart row;
      row.ids = tensors[At(kIds, store)].flat<int64_t>().data();
      row.num_ids = tensors[At(kIds, store)].NumElements();
      row.splits = tensors[At(kSplits, store)].flat<int32_t>().data();
      row.gradients = tensors[At(kGradients, store)].flat<float>().data();
      if (counted >= 0) {
        row.examples = tensors[At(kExamples, counted)].flat<int32_t>().data();
        row.absent = tensors[At(kAbsent, counted)].flat<uint8_t>().data();
      }
      rows.push_back(row);
    }
    const int num_tables =
        static_cast<int>(parts[0]->tensors[At(kSplits, store)].NumElements()) - 1;
    const int64_t dim = parts[0]->tensors[At(kGradients, store)].dim_size(1);
    const MergedIds merged = MergeIds(rows, num_tables, parallel);
    const auto num_ids = static_cast<int64_t>(merged.ids.size());
    Tensor *ids, *splits, *gradients;
    TF_RETURN_IF_ERROR(context->allocate_output(first_output + At(kIds, store), {num_ids}, &ids));
    TF_RETURN_IF_ERROR(
        context->allocate_output(first_output + At(kSplits, store), {num_tables + 1}, &splits));
    TF_RETURN_IF_ERROR(
        context->allocate_output(first_output + At(kGradients, store), {num_ids, dim}, &gradients));
    std::copy(merged.ids.begin(), merged.ids.end(), ids->flat<int64_t>().data());
    std::copy(merged.splits.begin(), merged.splits.end(), splits->flat<int32_t>().data());
    SumRows(rows, weights, merged, static_cast<int>(dim), parallel,
            gradients->flat<float>().data());
    if (counted < 0) return absl::OkStatus();
    Tensor *examples, *absent;
    TF_RETURN_IF_ERROR(
        context->allocate_output(first_output + At(kExamples, counted), {num_ids}, &examples));
    TF_RETURN_IF_ERROR(
        context->allocate_output(first_output + At(kAbsent, counted), {num_ids}, &absent));
    SumCounts(rows, merged, examples->flat<int32_t>().data(), absent->flat<uint8_t>().data());
    return absl::OkStatus();
  }

  absl::Status SetDense(OpKernelContext* context, const Parts& parts,
                        const std::vector<float>& weights, int first_output, int at) const {
    Tensor* out;
    const Tensor& first = parts[0]->tensors[at];
    TF_RETURN_IF_ERROR(context->allocate_output(first_output + at, first.shape(), &out));
    if (first.dtype() == tensorflow::DT_INT32) {
      AddUp<int32_t>(parts, at, out);
    } else if (first.dtype() == tensorflow::DT_INT64) {
      AddUp<int64_t>(parts, at, out);
    } else {
      std::vector<const float*> values;
      for (const auto& part : parts) values.push_back(part->tensors[at].flat<float>().data());
      SumDense(values, weights, first.NumElements(), DeviceThreads(context),
               out->flat<float>().data());
    }
    return absl::OkStatus();
  }

  // Whole numbers have no weights.
  template <typename T>
  static void AddUp(const Parts& parts, int at, Tensor* out) {
    auto sum = out->flat<T>();
    sum.setZero();
    for (const auto& part : parts) sum += part->tensors[at].flat<T>();
  }

  int num_stores_, num_counted_;
  std::vector<int> counted_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_PART_TENSORS_H_
