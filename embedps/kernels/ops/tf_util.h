// Helpers for TensorFlow ops.
#ifndef EMBEDPS_KERNELS_OPS_TF_UTIL_H_
#define EMBEDPS_KERNELS_OPS_TF_UTIL_H_

#include <cstdint>
#include <functional>

#include "embedps/kernels/runtime/parallel.h"
#include "embedps/kernels/runtime/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/threadpool.h"

// Registers class XOp as the kernel of op EmbedpsX.
#define EMBEDPS_KERNEL(X) \
  REGISTER_KERNEL_BUILDER(Name("Embedps" #X).Device(tensorflow::DEVICE_CPU), X##Op)

namespace embedps {

inline absl::Status ToTensorFlow(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return absl::OkStatus();
    case StatusCode::kInvalidArgument:
      return absl::InvalidArgumentError(status.message());
    case StatusCode::kNotFound:
      return absl::NotFoundError(status.message());
    case StatusCode::kDataLoss:
      return absl::DataLossError(status.message());
    case StatusCode::kIoError:
      return absl::InternalError(status.message());  // Unavailable would mean a lost server
  }
  return absl::UnknownError(status.message());
}

template <typename T>
absl::Status OutputScalar(tensorflow::OpKernelContext* context, int at, const T& value) {
  tensorflow::Tensor* out;
  TF_RETURN_IF_ERROR(context->allocate_output(at, {}, &out));
  out->scalar<T>()() = value;
  return absl::OkStatus();
}

// Returns a ParallelFor on the device's threads.
inline ParallelFor DeviceThreads(tensorflow::OpKernelContext* context) {
  auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
  return [workers](int64_t n, int64_t cost, const std::function<void(int64_t, int64_t)>& work) {
    using Params = tsl::thread::ThreadPool::SchedulingParams;
    workers->ParallelFor(n, Params::Adaptive(cost), work);
  };
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_TF_UTIL_H_
