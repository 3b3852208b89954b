// The row store as a TensorFlow resource. Also finds resources and reads the inputs of ops.
#ifndef EMBEDPS_KERNELS_OPS_STORE_RESOURCE_H_
#define EMBEDPS_KERNELS_OPS_STORE_RESOURCE_H_

#include <memory>
#include <string>
#include <utility>

#include "embedps/kernels/ops/tf_util.h"
#include "embedps/kernels/store/row_store.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {

class StoreResource : public tensorflow::ResourceBase {
 public:
  explicit StoreResource(RowStoreConfig config) : store(std::move(config)) {}
  std::string DebugString() const override { return "embedps group " + store.config().group; }
  int64_t MemoryUsed() const override { return store.Stats().memory_bytes; }

  RowStore store;
};

// The memory that the stores of a server share.
class ServerMemoryResource : public tensorflow::ResourceBase {
 public:
  explicit ServerMemoryResource(int64_t max_bytes)
      : memory(std::make_shared<ServerMemory>(max_bytes)) {}
  std::string DebugString() const override { return "embedps memory of a server"; }

  const std::shared_ptr<ServerMemory> memory;
};

// What the stores of a server whose coldest rows are on disk share.
class TierMemoryResource : public tensorflow::ResourceBase {
 public:
  explicit TierMemoryResource(TierConfig config)
      : memory(std::make_shared<TierMemory>(std::move(config))) {}
  std::string DebugString() const override { return "embedps memory of a server with a disk"; }

  const std::shared_ptr<TierMemory> memory;
};

using StorePtr = tensorflow::core::RefCountPtr<StoreResource>;

inline absl::Status FindStore(tensorflow::OpKernelContext* context, StorePtr* store) {
  return tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), store);
}

// Finds or makes a resource on this device. Sets the op's only output to its handle.
template <typename Resource, typename Make>
absl::Status FindOrCreate(tensorflow::OpKernelContext* context, const std::string& container,
                          const std::string& name, const Make& make) {
  Resource* found = nullptr;
  TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<Resource>(
      container, name, &found, [&make](Resource** created) {
        *created = make();
        return absl::OkStatus();
      }));
  const tensorflow::core::RefCountPtr<Resource> release(found);
  TF_RETURN_IF_ERROR(OutputScalar<tensorflow::ResourceHandle>(
      context, 0, tensorflow::MakeResourceHandle<Resource>(context, container, name)));
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadScalar(tensorflow::OpKernelContext* context, int at, const char* name, T* value) {
  const tensorflow::Tensor& tensor = context->input(at);
  if (!tensorflow::TensorShapeUtils::IsScalar(tensor.shape())) {
    return absl::InvalidArgumentError(std::string(name) + " must be a scalar but got shape " +
                                      tensor.shape().DebugString());
  }
  *value = tensor.scalar<T>()();
  return absl::OkStatus();
}

inline absl::Status CheckTable(const RowStore& store, int table) {
  if (table < store.num_tables()) return absl::OkStatus();
  return absl::InvalidArgumentError("table must be under " + std::to_string(store.num_tables()) +
                                    " but got " + std::to_string(table));
}

inline absl::Status CheckStep(int64_t step) {
  if (step >= 0 && step <= UINT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError("step must be in [0, 2^32) but got " + std::to_string(step));
}

// Reads inputs `at` (ids, int64 [n]) and `at` + 1 (splits, int32 [num_tables + 1]).
inline absl::Status ReadBatch(tensorflow::OpKernelContext* context, int at, const RowStore& store,
                              IdsByTable* batch) {
  const tensorflow::Tensor& ids = context->input(at);
  const tensorflow::Tensor& splits = context->input(at + 1);
  const std::string& group = store.config().group;
  if (ids.dims() != 1) {
    return absl::InvalidArgumentError(
        "group '" + group + "': ids must be of rank 1 but got shape " + ids.shape().DebugString());
  }
  if (splits.dims() != 1 || splits.NumElements() != store.num_tables() + 1) {
    return absl::InvalidArgumentError(
        "group '" + group + "': splits must be [" + std::to_string(store.num_tables() + 1) +
        "] (its tables + 1) but got shape " + splits.shape().DebugString());
  }
  batch->ids = ids.flat<int64_t>().data();
  batch->num_ids = ids.NumElements();
  batch->splits = splits.flat<int32_t>().data();
  bool sorted = batch->splits[0] == 0 && batch->splits[store.num_tables()] == batch->num_ids;
  for (int t = 0; t < store.num_tables(); ++t) sorted &= batch->splits[t] <= batch->splits[t + 1];
  if (!sorted) {
    return absl::InvalidArgumentError("group '" + group + "': splits must rise from 0 to " +
                                      std::to_string(batch->num_ids) +
                                      ", the number of ids, but got " + splits.SummarizeValue(64));
  }
  return absl::OkStatus();
}

inline absl::Status CheckDim(const RowStore& store, int dim) {
  if (store.config().dim == dim) return absl::OkStatus();
  return absl::InvalidArgumentError("group '" + store.config().group + "' stores dim " +
                                    std::to_string(store.config().dim) + " but the lookup wants " +
                                    std::to_string(dim));
}

// Gives output 0, the rows of a lookup, the shape [n, dim]; input `at` has the n ids.
inline absl::Status SetRowsShape(tensorflow::shape_inference::InferenceContext* c, int at) {
  tensorflow::shape_inference::ShapeHandle ids;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(at), 1, &ids));
  int64_t dim;
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  c->set_output(0, c->Matrix(c->Dim(ids, 0), dim));
  return absl::OkStatus();
}

// Reads the batch of a lookup, inputs `at` and `at` + 1, and makes output 0: its rows [n, dim].
inline absl::Status BeginLookup(tensorflow::OpKernelContext* context, int at, const RowStore& store,
                                int dim, IdsByTable* batch, float** rows) {
  TF_RETURN_IF_ERROR(CheckDim(store, dim));
  TF_RETURN_IF_ERROR(ReadBatch(context, at, store, batch));
  tensorflow::Tensor* out;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {batch->num_ids, dim}, &out));
  *rows = out->flat<float>().data();
  return absl::OkStatus();
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_STORE_RESOURCE_H_
