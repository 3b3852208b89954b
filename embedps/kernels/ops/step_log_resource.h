// A server's log of applied steps as a TensorFlow resource, with what waits for steps.
#ifndef EMBEDPS_KERNELS_OPS_STEP_LOG_RESOURCE_H_
#define EMBEDPS_KERNELS_OPS_STEP_LOG_RESOURCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "embedps/kernels/ops/part_tensors.h"
#include "embedps/kernels/ops/store_resource.h"
#include "embedps/kernels/runtime/call_steps.h"
#include "embedps/kernels/runtime/group_sums.h"
#include "embedps/kernels/runtime/step_gate.h"
#include "embedps/kernels/runtime/step_groups.h"
#include "embedps/kernels/runtime/step_log.h"
#include "embedps/kernels/runtime/step_sums.h"

namespace embedps {

class StepLogResource : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "embedps step log"; }

  StepLog log;
  CallSteps calls;
  StepGate gate;
  StepSums<StepPart> sums{&log};
  GroupSums<StepPart> group_sums{&log};
  StepGroups groups{&log};
};

using LogPtr = tensorflow::core::RefCountPtr<StepLogResource>;

// Reads input 0, a log.
inline absl::Status FindLog(tensorflow::OpKernelContext* context, LogPtr* log) {
  return tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), log);
}

// Reads input 0, a log, and input 1, the number of a step.
inline absl::Status FindLog(tensorflow::OpKernelContext* context, LogPtr* log, uint32_t* step) {
  TF_RETURN_IF_ERROR(FindLog(context, log));
  int64_t number = 0;
  TF_RETURN_IF_ERROR(ReadScalar(context, 1, "step", &number));
  TF_RETURN_IF_ERROR(CheckStep(number));
  *step = static_cast<uint32_t>(number);
  return absl::OkStatus();
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_STEP_LOG_RESOURCE_H_
