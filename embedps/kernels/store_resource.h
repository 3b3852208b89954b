// The row store as a TensorFlow resource, and how its ops read their inputs.
#ifndef EMBEDPS_KERNELS_STORE_RESOURCE_H_
#define EMBEDPS_KERNELS_STORE_RESOURCE_H_

#include <string>
#include <utility>

#include "embedps/kernels/row_store.h"
#include "embedps/kernels/tf_util.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace embedps {

class StoreResource : public tensorflow::ResourceBase {
 public:
  explicit StoreResource(RowStoreConfig config) : store(std::move(config)) {}
  std::string DebugString() const override { return "embedps group " + store.config().group; }
  int64_t MemoryUsed() const override { return store.Stats().memory_bytes; }

  RowStore store;
};

using StorePtr = tensorflow::core::RefCountPtr<StoreResource>;

inline absl::Status FindStore(tensorflow::OpKernelContext* context, StorePtr* store) {
  return tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), store);
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

inline absl::Status CheckStep(int64_t step) {
  if (step >= 0 && step <= UINT32_MAX) return absl::OkStatus();
  return absl::InvalidArgumentError("step must be in [0, 2^32) but got " + std::to_string(step));
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_RESOURCE_H_
