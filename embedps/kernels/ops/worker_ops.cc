// Ops that run on a worker, where the batch is, before and after the lookups.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "embedps/kernels/lookup/combiner.h"
#include "embedps/kernels/lookup/id_lists.h"
#include "embedps/kernels/lookup/router.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("EmbedpsRoute")
    .Input("ids: num_features * int64")
    .Input("row_splits: num_splits * int64")
    .Attr("num_features: int >= 1")
    .Attr("num_splits: int >= 0")
    .Attr("feature_tables: list(int)")
    .Attr("tables: list(string) >= 1")
    .Attr("counted_tables: list(bool) = []")
    .Attr("num_shards: int >= 1")
    .Attr("num_counted_shards: int >= 0 = 0")
    .Output("shard_ids: num_shards * int64")
    .Output("shard_splits: num_shards * int32")
    .Output("positions: num_features * int32")
    .Output("shard_examples: num_counted_shards * int32")
    .SetShapeFn([](InferenceContext* c) {
      int num_features, num_shards;
      std::vector<std::string> tables;
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &num_features));
      TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
      TF_RETURN_IF_ERROR(c->GetAttr("tables", &tables));
      for (int s = 0; s < num_shards; ++s) {
        c->set_output(s, c->Vector(InferenceContext::kUnknownDim));
        c->set_output(num_shards + s, c->Vector(static_cast<int64_t>(tables.size()) + 1));
      }
      for (int f = 0; f < num_features; ++f) c->set_output(2 * num_shards + f, c->input(f));
      for (int i = 2 * num_shards + num_features; i < c->num_outputs(); ++i) {
        c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
      }
      return absl::OkStatus();
    })
    .Doc(
        "Deduplicates each table's ids over its features and routes them to shards. positions: the "
        "index of each id's row in the shards' concatenated rows. With counted_tables, takes the "
        "row_splits of each feature (empty if examples have one id), and counts how many examples "
        "show each id of the tables that it marks: shard_examples, as many as shard_ids.");

class RouteOp : public OpKernel {
 public:
  explicit RouteOp(OpKernelConstruction* c) : OpKernel(c) {
    int num_features;
    OP_REQUIRES_OK(c, c->GetAttr("num_features", &num_features));
    OP_REQUIRES_OK(c, c->GetAttr("feature_tables", &feature_tables_));
    OP_REQUIRES_OK(c, c->GetAttr("tables", &tables_));
    OP_REQUIRES_OK(c, c->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES_OK(c, c->GetAttr("counted_tables", &counted_));
    int num_splits, num_counted_shards;
    OP_REQUIRES_OK(c, c->GetAttr("num_splits", &num_splits));
    OP_REQUIRES_OK(c, c->GetAttr("num_counted_shards", &num_counted_shards));
    const bool counts = !counted_.empty();
    OP_REQUIRES(c,
                (!counts || counted_.size() == tables_.size()) &&
                    num_splits == (counts ? num_features : 0) &&
                    num_counted_shards == (counts ? num_shards_ : 0),
                absl::InvalidArgumentError(
                    "counted_tables must be empty or as many as the tables; with them, there must "
                    "be row_splits per feature and num_counted_shards must be num_shards"));
    bool good = feature_tables_.size() == static_cast<size_t>(num_features);
    for (int t : feature_tables_) good &= t >= 0 && t < static_cast<int>(tables_.size());
    OP_REQUIRES(c, good,
                absl::InvalidArgumentError("feature_tables must give each of " +
                                           std::to_string(num_features) + " features one of " +
                                           std::to_string(tables_.size()) + " tables"));
  }
  void Compute(OpKernelContext* context) override {
    OpInputList ids;
    OpOutputList shard_ids, shard_splits, positions;
    OP_REQUIRES_OK(context, context->input_list("ids", &ids));
    OP_REQUIRES_OK(context, context->output_list("shard_ids", &shard_ids));
    OP_REQUIRES_OK(context, context->output_list("shard_splits", &shard_splits));
    OP_REQUIRES_OK(context, context->output_list("positions", &positions));
    std::vector<FeatureIds> features(ids.size());
    int64_t total = 0;
    for (int f = 0; f < ids.size(); ++f) {
      OP_REQUIRES(context, ids[f].dims() == 1,
                  absl::InvalidArgumentError("table '" + tables_[feature_tables_[f]] +
                                             "': ids must be of rank 1 but got shape " +
                                             ids[f].shape().DebugString()));
      Tensor* out;
      OP_REQUIRES_OK(context, positions.allocate(f, ids[f].shape(), &out));
      features[f].ids = ids[f].flat<int64_t>().data();
      features[f].num_ids = ids[f].NumElements();
      features[f].table = feature_tables_[f];
      features[f].positions = out->flat<int32_t>().data();
      if (!counted_.empty()) OP_REQUIRES_OK(context, ReadSplits(context, f, &features[f]));
      total += features[f].num_ids;
    }
    OP_REQUIRES(context, total <= INT32_MAX,
                absl::InvalidArgumentError("a step may look up 2^31 - 1 ids but got " +
                                           std::to_string(total)));
    const std::vector<ShardRequest> requests =
        Route(tables_, num_shards_, features, counted_, DeviceThreads(context));
    for (int s = 0; s < num_shards_; ++s) {
      Tensor *out_ids, *out_splits;
      const ShardRequest& r = requests[s];
      OP_REQUIRES_OK(context,
                     shard_ids.allocate(s, {static_cast<int64_t>(r.ids.size())}, &out_ids));
      OP_REQUIRES_OK(
          context, shard_splits.allocate(s, {static_cast<int64_t>(r.splits.size())}, &out_splits));
      std::memcpy(out_ids->data(), r.ids.data(), r.ids.size() * sizeof(int64_t));
      std::memcpy(out_splits->data(), r.splits.data(), r.splits.size() * sizeof(int32_t));
      if (counted_.empty()) continue;
      Tensor* examples;
      OP_REQUIRES_OK(context,
                     context->allocate_output(2 * num_shards_ + ids.size() + s,
                                              {static_cast<int64_t>(r.ids.size())}, &examples));
      std::memcpy(examples->data(), r.examples.data(), r.examples.size() * sizeof(int32_t));
    }
  }

 private:
  // Reads where a feature's examples begin.
  absl::Status ReadSplits(OpKernelContext* context, int f, FeatureIds* feature) const {
    OpInputList splits;
    TF_RETURN_IF_ERROR(context->input_list("row_splits", &splits));
    if (splits[f].NumElements() == 0) {
      feature->num_examples = feature->num_ids;
      return absl::OkStatus();
    }
    feature->row_splits = splits[f].flat<int64_t>().data();
    feature->num_examples = splits[f].NumElements() - 1;
    const std::string what = "the lists of feature " + std::to_string(f);
    return ToTensorFlow(
        CheckSplits(what.c_str(), feature->row_splits, splits[f].NumElements(), feature->num_ids));
  }

  std::vector<bool> counted_;
  std::vector<int> feature_tables_;
  std::vector<std::string> tables_;
  int num_shards_;
};
EMBEDPS_KERNEL(Route);

REGISTER_OP("EmbedpsKeepLast")
    .Input("ids: int64")
    .Input("row_splits: int64")
    .Attr("max_length: int >= 1")
    .Output("kept: int64")
    .Output("kept_splits: int64")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->input(1));
      return absl::OkStatus();
    })
    .Doc("Keeps the last max_length ids of each list.");

class KeepLastOp : public OpKernel {
 public:
  explicit KeepLastOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("max_length", &max_length_));
  }
  void Compute(OpKernelContext* context) override {
    const Tensor& ids = context->input(0);
    const Tensor& splits = context->input(1);
    OP_REQUIRES(context, ids.dims() == 1 && splits.dims() == 1,
                absl::InvalidArgumentError("ids and row_splits must be of rank 1 but got shapes " +
                                           ids.shape().DebugString() + " and " +
                                           splits.shape().DebugString()));
    const int64_t* from = splits.flat<int64_t>().data();
    OP_REQUIRES_OK(context, ToTensorFlow(CheckSplits("lists of ids", from, splits.NumElements(),
                                                     ids.NumElements())));
    const int64_t num_lists = splits.NumElements() - 1;
    Tensor *kept, *kept_splits;
    OP_REQUIRES_OK(context, context->allocate_output(1, splits.shape(), &kept_splits));
    int64_t* to = kept_splits->flat<int64_t>().data();
    const int64_t num_kept = CutSplits(from, num_lists, max_length_, to);
    OP_REQUIRES_OK(context, context->allocate_output(0, {num_kept}, &kept));
    KeepLast(ids.flat<int64_t>().data(), from, num_lists, to, kept->flat<int64_t>().data());
  }

 private:
  int64_t max_length_;
};
EMBEDPS_KERNEL(KeepLast);

// The base of EmbedpsCombine and its gradient: reads the attributes and the features' positions.
class CombineBase : public OpKernel {
 public:
  explicit CombineBase(OpKernelConstruction* c) : OpKernel(c) {
    std::vector<std::string> names;
    OP_REQUIRES_OK(c, c->GetAttr("combiners", &names));
    OP_REQUIRES_OK(c, c->GetAttr("feature_tables", &feature_tables_));
    OP_REQUIRES_OK(c, c->GetAttr("lengths", &lengths_));
    int num_features;
    OP_REQUIRES_OK(c, c->GetAttr("num_features", &num_features));
    if (lengths_.empty()) lengths_.resize(num_features, 0);
    OP_REQUIRES(c,
                names.size() == static_cast<size_t>(num_features) &&
                    feature_tables_.size() == static_cast<size_t>(num_features),
                absl::InvalidArgumentError("combiners and feature_tables must be as many as the " +
                                           std::to_string(num_features) + " features"));
    combiners_.resize(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      OP_REQUIRES_OK(c, ToTensorFlow(ParseCombiner(names[i], &combiners_[i])));
    }
    bool good = lengths_.size() == names.size();
    for (size_t i = 0; good && i < names.size(); ++i) {
      good = lengths_[i] == 0 || (lengths_[i] > 0 && combiners_[i] == Combiner::kNone);
    }
    OP_REQUIRES(c, good,
                absl::InvalidArgumentError("lengths must be 0, or positive with combiner none, for "
                                           "each of the " +
                                           std::to_string(num_features) + " features"));
    for (int t : feature_tables_) {
      OP_REQUIRES(c, t >= 0, absl::InvalidArgumentError("feature_tables must not be negative"));
      num_tables_ = std::max(num_tables_, t + 1);
    }
  }

 protected:
  // Checks that the shards' rows are all [n, dim]. Sets their total number and dim.
  static absl::Status CheckRows(const OpInputList& rows, int64_t* num_rows, int* dim) {
    *num_rows = 0;
    for (int s = 0; s < rows.size(); ++s) {
      if (rows[s].dims() != 2 || rows[s].dim_size(1) != rows[0].dim_size(1)) {
        return absl::InvalidArgumentError("rows must be [n, dim] of one dim but shard " +
                                          std::to_string(s) + " gave " +
                                          rows[s].shape().DebugString());
      }
      *num_rows += rows[s].dim_size(0);
    }
    *dim = static_cast<int>(rows[0].dim_size(1));
    return absl::OkStatus();
  }

  absl::Status ReadPositions(OpKernelContext* context, int64_t num_rows,
                             std::vector<FeaturePositions>* features) const {
    OpInputList positions, splits;
    TF_RETURN_IF_ERROR(context->input_list("positions", &positions));
    TF_RETURN_IF_ERROR(context->input_list("row_splits", &splits));
    features->resize(positions.size());
    for (int f = 0; f < positions.size(); ++f) {
      FeaturePositions& feature = (*features)[f];
      const int64_t n = positions[f].NumElements();
      feature.positions = positions[f].flat<int32_t>().data();
      feature.num_positions = n;
      feature.combiner = combiners_[f];
      feature.table = feature_tables_[f];
      // A negative position is a large unsigned number.
      uint32_t largest = 0;
      for (int64_t i = 0; i < n; ++i) {
        largest = std::max(largest, static_cast<uint32_t>(feature.positions[i]));
      }
      if (n > 0 && largest >= static_cast<uint64_t>(num_rows)) {
        return absl::InvalidArgumentError("feature " + std::to_string(f) +
                                          ": positions must be in [0, " + std::to_string(num_rows) +
                                          ") but got " +
                                          std::to_string(static_cast<int32_t>(largest)));
      }
      const bool pads = lengths_[f] > 0;
      if (splits[f].NumElements() == 0 && !pads) {
        feature.batch = n;
        continue;
      }
      const auto s = splits[f].flat<int64_t>();
      const std::string what = "feature " + std::to_string(f);
      TF_RETURN_IF_ERROR(ToTensorFlow(CheckSplits(what.c_str(), s.data(), s.size(), n)));
      if (combiners_[f] == Combiner::kNone && !pads) {  // a row per id, in their order
        feature.batch = n;
        continue;
      }
      if (pads) {
        feature.length = lengths_[f];
        for (int64_t i = 1; i < s.size(); ++i) {
          if (s(i) - s(i - 1) <= feature.length) continue;
          return absl::InvalidArgumentError(
              what + ": a list must have at most " + std::to_string(feature.length) +
              " ids but list " + std::to_string(i - 1) + " has " + std::to_string(s(i) - s(i - 1)));
        }
      }
      feature.splits = s.data();
      feature.batch = s.size() - 1;
    }
    return absl::OkStatus();
  }

  // Makes the shape of a feature's embeddings.
  absl::Status MakeShape(int f, const FeaturePositions& feature, int dim,
                         tensorflow::TensorShape* shape) const {
    *shape = {};
    TF_RETURN_IF_ERROR(shape->AddDimWithStatus(feature.batch));
    if (lengths_[f] > 0) TF_RETURN_IF_ERROR(shape->AddDimWithStatus(feature.length));
    return shape->AddDimWithStatus(dim);
  }

  int num_tables() const { return num_tables_; }

 private:
  std::vector<Combiner> combiners_;
  std::vector<int64_t> lengths_;
  std::vector<int> feature_tables_;
  int num_tables_ = 0;
};

REGISTER_OP("EmbedpsCombine")
    .Input("rows: num_shards * float")
    .Input("positions: num_features * int32")
    .Input("row_splits: num_features * int64")
    .Attr("num_shards: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("combiners: list(string)")
    .Attr("feature_tables: list(int)")
    .Attr("lengths: list(int) = []")
    .Output("embeddings: num_features * float")
    .SetShapeFn([](InferenceContext* c) {
      int num_features, num_shards;
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &num_features));
      TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
      tensorflow::shape_inference::ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
      std::vector<int64_t> lengths;
      TF_RETURN_IF_ERROR(c->GetAttr("lengths", &lengths));
      lengths.resize(num_features, 0);
      for (int f = 0; f < num_features; ++f) {
        const auto batch = c->UnknownDim(), dim = c->Dim(rows, 1);
        c->set_output(f, lengths[f] > 0 ? c->MakeShape({batch, c->MakeDim(lengths[f]), dim})
                                        : c->MakeShape({batch, dim}));
      }
      return absl::OkStatus();
    })
    .Doc(
        "Combines the shards' rows into one vector per feature and example: [batch, dim]. A "
        "feature with empty row_splits has one id per example. Otherwise row_splits [batch + 1] "
        "bounds the ids of each example. A feature with combiner none gets a row per id: [ids, "
        "dim], or with a length [batch, length, dim], zeros after an example's last id.");

class CombineOp : public CombineBase {
 public:
  using CombineBase::CombineBase;
  void Compute(OpKernelContext* context) override {
    OpInputList shard_rows;
    OpOutputList embeddings;
    OP_REQUIRES_OK(context, context->input_list("rows", &shard_rows));
    OP_REQUIRES_OK(context, context->output_list("embeddings", &embeddings));
    int64_t num_rows;
    int dim;
    OP_REQUIRES_OK(context, CheckRows(shard_rows, &num_rows, &dim));
    std::vector<FeaturePositions> features;
    OP_REQUIRES_OK(context, ReadPositions(context, num_rows, &features));
    std::vector<const float*> rows;
    rows.reserve(num_rows);
    for (int s = 0; s < shard_rows.size(); ++s) {
      const float* data = shard_rows[s].flat<float>().data();
      for (int64_t i = 0; i < shard_rows[s].dim_size(0); ++i) rows.push_back(data + i * dim);
    }
    std::vector<float*> to;
    for (size_t f = 0; f < features.size(); ++f) {
      Tensor* out;
      tensorflow::TensorShape shape;
      OP_REQUIRES_OK(context, MakeShape(f, features[f], dim, &shape));
      OP_REQUIRES_OK(context, embeddings.allocate(f, shape, &out));
      to.push_back(out->flat<float>().data());
    }
    Combine(features, rows, dim, DeviceThreads(context), to);
  }
};
EMBEDPS_KERNEL(Combine);

REGISTER_OP("EmbedpsCombineGrad")
    .Input("upstream: num_features * float")
    .Input("rows: num_shards * float")
    .Input("positions: num_features * int32")
    .Input("row_splits: num_features * int64")
    .Attr("num_shards: int >= 1")
    .Attr("num_features: int >= 1")
    .Attr("combiners: list(string)")
    .Attr("feature_tables: list(int)")
    .Attr("lengths: list(int) = []")
    .Output("gradients: num_shards * float")
    .SetShapeFn([](InferenceContext* c) {
      int num_features, num_shards;
      TF_RETURN_IF_ERROR(c->GetAttr("num_features", &num_features));
      TF_RETURN_IF_ERROR(c->GetAttr("num_shards", &num_shards));
      for (int s = 0; s < num_shards; ++s) c->set_output(s, c->input(num_features + s));
      return absl::OkStatus();
    })
    .Doc(
        "Sums each row's gradient over the features and examples that used it. Uses only the "
        "shapes of rows.");

class CombineGradOp : public CombineBase {
 public:
  using CombineBase::CombineBase;
  void Compute(OpKernelContext* context) override {
    OpInputList upstream, shard_rows;
    OpOutputList out;
    OP_REQUIRES_OK(context, context->input_list("upstream", &upstream));
    OP_REQUIRES_OK(context, context->input_list("rows", &shard_rows));
    OP_REQUIRES_OK(context, context->output_list("gradients", &out));
    int64_t num_rows;
    int dim;
    OP_REQUIRES_OK(context, CheckRows(shard_rows, &num_rows, &dim));
    std::vector<FeaturePositions> features;
    OP_REQUIRES_OK(context, ReadPositions(context, num_rows, &features));
    std::vector<const float*> gradient_of(features.size());
    for (size_t f = 0; f < features.size(); ++f) {
      tensorflow::TensorShape shape;
      OP_REQUIRES_OK(context, MakeShape(f, features[f], dim, &shape));
      OP_REQUIRES(context, upstream[f].shape() == shape,
                  absl::InvalidArgumentError("feature " + std::to_string(f) +
                                             ": its gradient must be " + shape.DebugString() +
                                             " but got " + upstream[f].shape().DebugString()));
      gradient_of[f] = upstream[f].flat<float>().data();
    }
    std::vector<float*> gradients;
    gradients.reserve(num_rows);
    for (int s = 0; s < shard_rows.size(); ++s) {
      Tensor* tensor;
      OP_REQUIRES_OK(context, out.allocate(s, shard_rows[s].shape(), &tensor));
      float* data = tensor->flat<float>().data();
      std::memset(data, 0, tensor->NumElements() * sizeof(float));
      for (int64_t i = 0; i < shard_rows[s].dim_size(0); ++i) gradients.push_back(data + i * dim);
    }
    CombineGradient(features, gradient_of, dim, num_tables(), DeviceThreads(context), gradients);
  }
};
EMBEDPS_KERNEL(CombineGrad);

}  // namespace
}  // namespace embedps
