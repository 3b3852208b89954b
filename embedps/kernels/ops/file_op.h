// An op that works on files, and how its inputs name them.
#ifndef EMBEDPS_KERNELS_OPS_FILE_OP_H_
#define EMBEDPS_KERNELS_OPS_FILE_OP_H_

#include <sys/resource.h>

#include <cfenv>
#include <string>
#include <thread>
#include <utility>

#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/ops/store_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace embedps {

// If the process and a file's op want the same core, the op gets a tenth of it.
inline constexpr int kFileNiceness = 10;

// Sets the standard floating-point environment in its scope. TensorFlow's threads, and threads that
// they start, treat denormal numbers as zero, but a file must keep them.
class StandardFloats {
 public:
  StandardFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~StandardFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

// An op on files of a store, its input 0. That takes seconds, so it has its own thread and never
// blocks one that lookups need. A nice thread has a low priority: steps get the cores first.
class FileOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    std::thread([this, context, done = std::move(done)] {
      if (niceness_ > 0) ::setpriority(PRIO_PROCESS, 0, niceness_);  // 0 is this thread
      absl::Status status;
      {
        const StandardFloats floats;
        StorePtr found;
        status = FindStore(context, &found);
        if (status.ok()) status = Work(context, &found->store);
        if (status.ok()) status = ToTensorFlow(found->store.failure());
      }
      if (!status.ok()) context->SetStatus(status);
      done();
    }).detach();
  }

 protected:
  virtual absl::Status Work(tensorflow::OpKernelContext* context, RowStore* store) = 0;

  int niceness_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_FILE_OP_H_
