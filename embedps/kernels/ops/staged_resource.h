// Records that were staged for a store, as a TensorFlow resource.
#ifndef EMBEDPS_KERNELS_OPS_STAGED_RESOURCE_H_
#define EMBEDPS_KERNELS_OPS_STAGED_RESOURCE_H_

#include <string>
#include <utility>

#include "embedps/kernels/store/staged_rows.h"
#include "tensorflow/core/framework/resource_base.h"

namespace embedps {

class StagedResource : public tensorflow::ResourceBase {
 public:
  explicit StagedResource(StagedRows staged) : rows(std::move(staged)) {}
  std::string DebugString() const override { return "embedps staged rows"; }

  StagedRows rows;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_STAGED_RESOURCE_H_
