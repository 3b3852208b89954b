// The index of items as a tensor of type variant. It is freed with the last tensor that holds it.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/lookup/id_lists.h"
#include "embedps/kernels/ops/tf_util.h"
#include "embedps/kernels/retrieval/item_index.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace embedps {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Variant;
using tensorflow::shape_inference::InferenceContext;

// What the tensor holds. It does not leave its process.
struct IndexValue {
  std::string TypeName() const { return "embedps::ItemIndex"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(tensorflow::VariantTensorData) { return false; }
  std::string DebugString() const { return TypeName(); }

  std::shared_ptr<const ItemIndex> index;
};

absl::Status ReadIndex(OpKernelContext* context, std::shared_ptr<const ItemIndex>* index) {
  const Tensor& tensor = context->input(0);
  const IndexValue* value =
      tensor.dims() == 0 ? tensor.scalar<Variant>()().get<IndexValue>() : nullptr;
  if (value == nullptr || value->index == nullptr) {
    return absl::InvalidArgumentError("index must be a tensor of EmbedpsNoItems or ChangeItems");
  }
  *index = value->index;
  return absl::OkStatus();
}

void Output(OpKernelContext* context, std::shared_ptr<const ItemIndex> index) {
  Tensor* out;
  OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
  IndexValue value;
  value.index = std::move(index);
  out->scalar<Variant>()() = std::move(value);
}

absl::Status CheckShape(const char* name, const Tensor& tensor, const TensorShape& wanted) {
  if (tensor.shape() == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " must be " + wanted.DebugString() +
                                    " but is " + tensor.shape().DebugString());
}

absl::Status CheckVector(const char* name, const Tensor& tensor) {
  if (tensor.dims() == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(name) + " must be of rank 1 but is " +
                                    tensor.shape().DebugString());
}

REGISTER_OP("EmbedpsNoItems")
    .Attr("dim: int >= 1")
    .Output("index: variant")
    .SetIsStateful()  // else TensorFlow would fold it into a constant, which must be written
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Makes an index without items, for vectors of `dim` floats.");

class NoItemsOp : public OpKernel {
 public:
  explicit NoItemsOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("dim", &dim_));
  }
  void Compute(OpKernelContext* context) override {
    Output(context, std::make_shared<ItemIndex>(dim_));
  }

 private:
  int dim_;
};
EMBEDPS_KERNEL(NoItems);

REGISTER_OP("EmbedpsChangeItems")
    .Input("index: variant")
    .Input("ids: int64")
    .Input("vectors: float")
    .Input("removed: int64")
    .Output("changed: variant")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Makes an index from which `removed` are gone and in which `ids` have `vectors`; the given "
        "one stays as it is.");

class ChangeItemsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const ItemIndex> index;
    OP_REQUIRES_OK(context, ReadIndex(context, &index));
    const Tensor &ids = context->input(1), &vectors = context->input(2);
    const Tensor& removed = context->input(3);
    OP_REQUIRES_OK(context, CheckVector("ids", ids));
    OP_REQUIRES_OK(context, CheckVector("removed", removed));
    const int64_t num_ids = ids.NumElements();
    OP_REQUIRES_OK(context, CheckShape("vectors", vectors, {num_ids, index->dim()}));
    OP_REQUIRES(context, num_ids + index->num_items() < (int64_t{1} << 30),
                absl::InvalidArgumentError("an index must have fewer than 2^30 items"));
    Output(context,
           index->Changed(ids.flat<int64_t>().data(), num_ids, vectors.flat<float>().data(),
                          removed.flat<int64_t>().data(), removed.NumElements()));
  }
};
EMBEDPS_KERNEL(ChangeItems);

REGISTER_OP("EmbedpsSearchItems")
    .Input("index: variant")
    .Input("queries: float")
    .Input("seen: int64")
    .Input("seen_splits: int64")
    .Input("allowed: int64")
    .Input("allowed_splits: int64")
    .Input("is_limited: bool")
    .Attr("k: int >= 1")
    .Output("scores: float")
    .Output("ids: int64")
    .SetShapeFn([](InferenceContext* c) {
      int k;
      TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
      for (int i = 0; i < 2; ++i) c->set_output(i, c->Matrix(InferenceContext::kUnknownDim, k));
      return absl::OkStatus();
    })
    .Doc(
        "Finds the k items of the highest dot products with each query, [queries, dim]. Leaves out "
        "the query's list of `seen`; if is_limited, finds only items of its list of `allowed`. "
        "Places without an item have the least float and -1.");

class SearchItemsOp : public OpKernel {
 public:
  explicit SearchItemsOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("k", &k_));
  }
  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const ItemIndex> index;
    OP_REQUIRES_OK(context, ReadIndex(context, &index));
    const Tensor& queries = context->input(1);
    OP_REQUIRES(
        context, queries.dims() == 2 && queries.dim_size(1) == index->dim(),
        absl::InvalidArgumentError("queries must be [queries, " + std::to_string(index->dim()) +
                                   "] but are " + queries.shape().DebugString()));
    const int64_t n = queries.dim_size(0);
    const Tensor& limited = context->input(6);
    OP_REQUIRES_OK(context, CheckShape("is_limited", limited, {n}));
    std::vector<ItemFilter> filters(n);
    const int64_t *seen, *seen_splits, *allowed, *allowed_splits;
    OP_REQUIRES_OK(context, ReadLists(context, 2, "seen", n, &seen, &seen_splits));
    OP_REQUIRES_OK(context, ReadLists(context, 4, "allowed", n, &allowed, &allowed_splits));
    for (int64_t q = 0; q < n; ++q) {
      filters[q].seen = seen + seen_splits[q];
      filters[q].num_seen = seen_splits[q + 1] - seen_splits[q];
      filters[q].is_limited = limited.flat<bool>()(q);
      filters[q].allowed = allowed + allowed_splits[q];
      filters[q].num_allowed = allowed_splits[q + 1] - allowed_splits[q];
    }
    Tensor *scores, *ids;
    OP_REQUIRES_OK(context, context->allocate_output(0, {n, k_}, &scores));
    OP_REQUIRES_OK(context, context->allocate_output(1, {n, k_}, &ids));
    index->Search(queries.flat<float>().data(), n, k_, filters, DeviceThreads(context),
                  scores->flat<float>().data(), ids->flat<int64_t>().data());
  }

 private:
  // Reads the inputs `at` and `at + 1`: lists of ids and where they begin.
  absl::Status ReadLists(OpKernelContext* context, int at, const char* name, int64_t n,
                         const int64_t** ids, const int64_t** splits) const {
    const Tensor &values = context->input(at), &begins = context->input(at + 1);
    TF_RETURN_IF_ERROR(CheckVector(name, values));
    TF_RETURN_IF_ERROR(CheckShape("the splits of the lists", begins, {n + 1}));
    *ids = values.flat<int64_t>().data();
    *splits = begins.flat<int64_t>().data();
    return ToTensorFlow(CheckSplits(name, *splits, n + 1, values.NumElements()));
  }

  int k_;
};
EMBEDPS_KERNEL(SearchItems);

REGISTER_OP("EmbedpsReadItems")
    .Input("index: variant")
    .Input("ids: int64")
    .Output("vectors: float")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Matrix(InferenceContext::kUnknownDim, InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Reads the vectors of items, [ids, dim]; zeros where there is none.");

class ReadItemsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const ItemIndex> index;
    OP_REQUIRES_OK(context, ReadIndex(context, &index));
    const Tensor& ids = context->input(1);
    OP_REQUIRES_OK(context, CheckVector("ids", ids));
    Tensor* vectors;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, {ids.NumElements(), index->dim()}, &vectors));
    index->Read(ids.flat<int64_t>().data(), ids.NumElements(), vectors->flat<float>().data());
  }
};
EMBEDPS_KERNEL(ReadItems);

REGISTER_OP("EmbedpsItemsSize")
    .Input("index: variant")
    .Output("items: int64")
    .Output("bytes: int64")
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 2; ++i) c->set_output(i, c->Scalar());
      return absl::OkStatus();
    })
    .Doc("Counts the items of an index, and their bytes in memory.");

class ItemsSizeOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const ItemIndex> index;
    OP_REQUIRES_OK(context, ReadIndex(context, &index));
    Tensor *items, *bytes;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &items));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &bytes));
    items->scalar<int64_t>()() = index->num_items();
    bytes->scalar<int64_t>()() = index->num_bytes();
  }
};
EMBEDPS_KERNEL(ItemsSize);

}  // namespace
}  // namespace embedps
