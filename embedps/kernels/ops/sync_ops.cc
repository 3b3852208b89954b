// Ops of steps that several workers take together: a server waits for the step before, adds up the
// parts of a step, and applies the sum once.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/lookup/parts.h"
#include "embedps/kernels/ops/cancellable_wait.h"
#include "embedps/kernels/ops/step_log_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("EmbedpsAwaitStep")
    .Input("log: resource")
    .Input("step: int64")
    .Input("after: int64")
    .Output("seen: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Waits until the log has step `after`, unless that is negative or the log has `step`. "
        "Returns how many steps the log then has.");

// Takes no thread while it waits.
class AwaitStepOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    uint32_t step;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found, &step), done);
    int64_t after = 0;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 2, "after", &after), done);
    Tensor* seen;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &seen), done);
    StepLog* log = &found->log;
    if (after < 0 || log->Has(step) || log->Has(static_cast<uint32_t>(after))) {
      seen->scalar<int64_t>()() = log->Count();
      done();
      return;
    }
    const auto wait = CancellableWait::Start(context, done, std::move(found),
                                             [log](int64_t ticket) { log->Cancel(ticket); });
    if (wait == nullptr) return;
    wait->SetTicket(log->WhenAdded(static_cast<uint32_t>(after), [done, wait, log, seen] {
      if (!wait->End()) return;
      seen->scalar<int64_t>()() = log->Count();
      done();
    }));
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsAwaitStep").Device(tensorflow::DEVICE_CPU), AwaitStepOp);

// An attempt's right to apply a step. If the attempt ends before it has, the right passes on.
class StepTurn : public tensorflow::ResourceBase {
 public:
  StepTurn(StepLogResource* log, uint32_t step) : log_(log), step_(step) { log->Ref(); }
  ~StepTurn() override {
    if (!applied_) log_->sums.Abandoned(step_);
  }
  std::string DebugString() const override { return "embedps turn to apply a step"; }

  void Applied() {
    if (applied_) return;
    applied_ = true;
    log_->sums.Applied(step_);
  }

 private:
  const LogPtr log_;
  const uint32_t step_;
  bool applied_ = false;
};

REGISTER_OP("EmbedpsAddPart")
    .Input("log: resource")
    .Input("part: int64")
    .Input("num_parts: int64")
    .Input("rank: int64")
    .Input("num_rows: int64")
    .Input("worker: int64")
    .Input("seen: int64")
    .Input("ids: num_stores * int64")
    .Input("splits: num_stores * int32")
    .Input("gradients: num_stores * float")
    .Input("examples: num_counted * int32")
    .Input("absent: num_counted * uint8")
    .Input("dense: dense_types")
    .Attr("num_stores: int >= 0")
    .Attr("num_counted: int >= 0")
    .Attr("counted: list(int)")
    .Attr("dense_types: list({float, int32, int64}) >= 0")
    .Output("is_complete: bool")
    .Output("turn: resource")
    .Output("merged_ids: num_stores * int64")
    .Output("merged_splits: num_stores * int32")
    .Output("merged_gradients: num_stores * float")
    .Output("merged_examples: num_counted * int32")
    .Output("merged_absent: num_counted * uint8")
    .Output("merged_dense: dense_types")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int num_stores, num_counted;
      TF_RETURN_IF_ERROR(c->GetAttr("num_stores", &num_stores));
      TF_RETURN_IF_ERROR(c->GetAttr("num_counted", &num_counted));
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      int out = 2, in = 7;
      const auto vector = c->Vector(InferenceContext::kUnknownDim);
      for (int i = 0; i < num_stores; ++i, ++in) c->set_output(out++, vector);
      for (int i = 0; i < num_stores; ++i, ++in) c->set_output(out++, c->input(in));
      for (int i = 0; i < num_stores; ++i, ++in) {
        tensorflow::shape_inference::ShapeHandle gradients;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(in), 2, &gradients));
        c->set_output(out++, c->Matrix(InferenceContext::kUnknownDim, c->Dim(gradients, 1)));
      }
      for (int i = 0; i < 2 * num_counted; ++i, ++in) c->set_output(out++, vector);
      for (; in < c->num_inputs(); ++in) c->set_output(out++, c->input(in));
      return absl::OkStatus();
    })
    .Doc(
        "Adds a worker's part of a step, unless the step has that part or was applied. "
        "is_complete: "
        "the caller must apply the merged parts and then call EmbedpsStepTaken with the turn. "
        "Then merged_*: by store the ids of all parts, each once per table, with their gradients' "
        "sum and counts; and the sums of the dense tensors. Floats are weighted by num_rows. "
        "Otherwise merged_* are empty rows and the caller's own dense tensors.");

class AddPartOp : public tensorflow::AsyncOpKernel {
 public:
  explicit AddPartOp(OpKernelConstruction* c) : AsyncOpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("num_stores", &num_stores_));
    OP_REQUIRES_OK(c, c->GetAttr("num_counted", &num_counted_));
    OP_REQUIRES_OK(c, c->GetAttr("counted", &counted_));
    OP_REQUIRES(c, static_cast<int>(counted_.size()) == num_counted_,
                absl::InvalidArgumentError("EmbedpsAddPart: counted must have num_counted stores"));
    for (const int store : counted_) {
      OP_REQUIRES(c, store >= 0 && store < num_stores_,
                  absl::InvalidArgumentError("EmbedpsAddPart: counted must be stores"));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    LogPtr found;
    StepLog::Entry entry;
    OP_REQUIRES_OK_ASYNC(context, FindLog(context, &found, &entry.step), done);
    int64_t num_parts = 0, rank = 0;
    StepPart part;
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 2, "num_parts", &num_parts), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 3, "rank", &rank), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 4, "num_rows", &part.num_rows), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 5, "worker", &entry.worker), done);
    OP_REQUIRES_OK_ASYNC(context, ReadScalar(context, 6, "seen", &entry.seen), done);
    OP_REQUIRES_ASYNC(context, part.num_rows >= 1,
                      absl::InvalidArgumentError("num_rows must be at least 1 but is " +
                                                 std::to_string(part.num_rows)),
                      done);
    for (int i = kScalars; i < context->num_inputs(); ++i)
      part.tensors.push_back(context->input(i));
    OP_REQUIRES_OK_ASYNC(context, CheckRows(part.tensors), done);
    StepLogResource* resource = found.get();
    StepSums<StepPart>* sums = &resource->sums;
    const auto wait = CancellableWait::Start(context, done, std::move(found),
                                             [sums](int64_t ticket) { sums->Cancel(ticket); });
    if (wait == nullptr) return;
    const auto step = static_cast<uint32_t>(entry.step - rank);
    int64_t ticket;
    const Status added = sums->Add(
        rank, num_parts, entry, std::move(part),
        [this, context, done, wait, resource, step](const StepSums<StepPart>::Parts& parts) {
          if (!wait->End()) {
            if (!parts.empty()) resource->sums.Abandoned(step);
            return;
          }
          const absl::Status status =
              parts.empty() ? SetOwn(context) : SetMerged(context, resource, step, parts);
          if (!status.ok()) context->SetStatus(status);
          done();
        },
        &ticket);
    if (added.ok()) {
      wait->SetTicket(ticket);
    } else if (wait->End()) {
      context->SetStatus(ToTensorFlow(added));
      done();
    }
  }

 private:
  static constexpr int kScalars = 7;
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

  // All parts of a step must have the tensors of one graph.
  absl::Status CheckAlike(const StepSums<StepPart>::Parts& parts) const {
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

  absl::Status SetOwn(OpKernelContext* context) {
    Tensor* is_complete;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &is_complete));
    is_complete->scalar<bool>()() = false;
    Tensor* turn;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &turn));
    for (int i = 0; i < FirstDense(); ++i) {
      const Tensor& own = context->input(kScalars + i);
      TensorShape shape = own.shape();
      const bool is_splits = i >= At(kSplits, 0) && i < At(kGradients, 0);
      if (!is_splits) shape.set_dim(0, 0);
      Tensor* out;
      TF_RETURN_IF_ERROR(context->allocate_output(2 + i, shape, &out));
      if (is_splits) out->flat<int32_t>().setZero();
    }
    for (int i = kScalars + FirstDense(); i < context->num_inputs(); ++i) {
      context->set_output(i - kScalars + 2, context->input(i));
    }
    return absl::OkStatus();
  }

  absl::Status SetMerged(OpKernelContext* context, StepLogResource* resource, uint32_t step,
                         const StepSums<StepPart>::Parts& parts) {
    // Before anything can fail: an error gives the turn back.
    const auto handle = tensorflow::ResourceHandle::MakeRefCountingHandle(
        new StepTurn(resource, step), context->device()->name(), {}, {});
    TF_RETURN_IF_ERROR(CheckAlike(parts));
    Tensor* is_complete;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &is_complete));
    is_complete->scalar<bool>()() = true;
    Tensor* turn;
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &turn));
    turn->scalar<tensorflow::ResourceHandle>()() = handle;
    std::vector<int64_t> num_rows;
    for (const auto& part : parts) num_rows.push_back(part->num_rows);
    const std::vector<float> weights = PartWeights(num_rows);
    for (int i = 0; i < num_stores_; ++i) {
      TF_RETURN_IF_ERROR(SetRows(context, parts, weights, i));
    }
    for (int i = FirstDense(); i < static_cast<int>(parts[0]->tensors.size()); ++i) {
      TF_RETURN_IF_ERROR(SetDense(context, parts, weights, i));
    }
    return absl::OkStatus();
  }

  absl::Status SetRows(OpKernelContext* context, const StepSums<StepPart>::Parts& parts,
                       const std::vector<float>& weights, int store) {
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
    TF_RETURN_IF_ERROR(context->allocate_output(2 + At(kIds, store), {num_ids}, &ids));
    TF_RETURN_IF_ERROR(context->allocate_output(2 + At(kSplits, store), {num_tables + 1}, &splits));
    TF_RETURN_IF_ERROR(
        context->allocate_output(2 + At(kGradients, store), {num_ids, dim}, &gradients));
    std::copy(merged.ids.begin(), merged.ids.end(), ids->flat<int64_t>().data());
    std::copy(merged.splits.begin(), merged.splits.end(), splits->flat<int32_t>().data());
    SumRows(rows, weights, merged, static_cast<int>(dim), parallel,
            gradients->flat<float>().data());
    if (counted < 0) return absl::OkStatus();
    Tensor *examples, *absent;
    TF_RETURN_IF_ERROR(context->allocate_output(2 + At(kExamples, counted), {num_ids}, &examples));
    TF_RETURN_IF_ERROR(context->allocate_output(2 + At(kAbsent, counted), {num_ids}, &absent));
    SumCounts(rows, merged, examples->flat<int32_t>().data(), absent->flat<uint8_t>().data());
    return absl::OkStatus();
  }

  absl::Status SetDense(OpKernelContext* context, const StepSums<StepPart>::Parts& parts,
                        const std::vector<float>& weights, int at) {
    Tensor* out;
    const Tensor& first = parts[0]->tensors[at];
    TF_RETURN_IF_ERROR(context->allocate_output(2 + at, first.shape(), &out));
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
  static void AddUp(const StepSums<StepPart>::Parts& parts, int at, Tensor* out) {
    auto sum = out->flat<T>();
    sum.setZero();
    for (const auto& part : parts) sum += part->tensors[at].flat<T>();
  }

  int num_stores_, num_counted_;
  std::vector<int> counted_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsAddPart").Device(tensorflow::DEVICE_CPU), AddPartOp);

REGISTER_OP("EmbedpsStepTaken")
    .Input("log: resource")
    .Input("is_complete: bool")
    .Input("turn: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Logs the parts of a step that was applied, if is_complete. Both are of EmbedpsAddPart.");

class StepTakenOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    bool is_complete = false;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "is_complete", &is_complete));
    if (!is_complete) return;
    const tensorflow::ResourceHandle& handle = tensorflow::HandleFromInput(context, 2);
    const auto turn = handle.GetResource<StepTurn>();
    OP_REQUIRES_OK(context, turn.status());
    (*turn)->Applied();
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsStepTaken").Device(tensorflow::DEVICE_CPU), StepTakenOp);

REGISTER_OP("EmbedpsOpenSteps")
    .Input("log: resource")
    .Output("parts: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc("Lists [n, 3] the parts of steps that lack some: step, rank, worker; -1 if it is absent.");

class OpenStepsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    LogPtr resource;
    OP_REQUIRES_OK(context,
                   LookupResource(context, tensorflow::HandleFromInput(context, 0), &resource));
    const std::vector<std::array<int64_t, 3>> found = resource->sums.Open();
    Tensor* parts;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {static_cast<int64_t>(found.size()), 3}, &parts));
    auto rows = parts->matrix<int64_t>();
    for (size_t i = 0; i < found.size(); ++i) {
      std::copy(found[i].begin(), found[i].end(), &rows(i, 0));
    }
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsOpenSteps").Device(tensorflow::DEVICE_CPU), OpenStepsOp);

}  // namespace
}  // namespace embedps
