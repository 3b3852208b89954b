// The signals between a server and its client: the client tells that it is alive, the server that
// it must end, and the client that it may.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>

#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::atomic<bool> leaving = false;
std::atomic<bool> released = false;
std::atomic<double> last_probe = -1e9;

class ProbeOp : public tf::OpKernel {
 public:
  explicit ProbeOp(tf::OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("release", &release_));
  }
  void Compute(tf::OpKernelContext* context) override {
    last_probe = Now();
    if (release_) released = true;
    tf::Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &output));
    output->scalar<bool>()() = leaving;
  }

 private:
  bool release_;
};

REGISTER_OP("EmbedpsProbe")
    .Attr("release: bool = false")
    .Output("leaving: bool")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("Returns whether this process was told to end. release: the client no longer needs it.");
EMBEDPS_KERNEL(Probe);

std::string& Version() {
  static std::string version;
  return version;
}

class VersionOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &output));
    output->scalar<tf::tstring>()() = Version();
  }
};

REGISTER_OP("EmbedpsVersion")
    .Output("version: string")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape)
    .Doc("Returns which embedps this process has.");
EMBEDPS_KERNEL(Version);

}  // namespace

// embedps/server.py and embedps/kernels/__init__.py call these through ctypes.
extern "C" {
__attribute__((visibility("default"))) void embedps_set_version(const char* version) {
  Version() = version;
}
__attribute__((visibility("default"))) void embedps_leave() { leaving = true; }
__attribute__((visibility("default"))) bool embedps_released() { return released; }
__attribute__((visibility("default"))) double embedps_secs_since_probe() {
  return Now() - last_probe;
}
}
