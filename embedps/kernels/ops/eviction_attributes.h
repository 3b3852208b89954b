// The attributes of a store's op that hold the tables' eviction policies.
#ifndef EMBEDPS_KERNELS_OPS_EVICTION_ATTRIBUTES_H_
#define EMBEDPS_KERNELS_OPS_EVICTION_ATTRIBUTES_H_

#include <cmath>
#include <string>
#include <vector>

#include "embedps/kernels/ops/tf_util.h"
#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/names.h"
#include "embedps/kernels/store/row_store.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace embedps {

// Sets the eviction of each table of `config`, which has what else byte limits count.
inline absl::Status ReadEviction(tensorflow::OpKernelConstruction* c, RowStoreConfig* config) {
  std::vector<int64_t> ttl_steps, limit_rows, limit_bytes;
  std::vector<float> min_norms;
  std::vector<bool> have_oldest_step;
  std::vector<std::string> orders;
  TF_RETURN_IF_ERROR(c->GetAttr("ttl_steps", &ttl_steps));
  TF_RETURN_IF_ERROR(c->GetAttr("have_oldest_step", &have_oldest_step));
  TF_RETURN_IF_ERROR(c->GetAttr("min_norms", &min_norms));
  TF_RETURN_IF_ERROR(c->GetAttr("limit_rows", &limit_rows));
  TF_RETURN_IF_ERROR(c->GetAttr("limit_bytes", &limit_bytes));
  TF_RETURN_IF_ERROR(c->GetAttr("eviction_orders", &orders));
  TF_RETURN_IF_ERROR(c->GetAttr("sweeps_itself", &config->sweeps_itself));
  const size_t n = config->tables.size();
  if (ttl_steps.empty()) return absl::OkStatus();
  if (ttl_steps.size() != n || have_oldest_step.size() != n || min_norms.size() != n ||
      limit_rows.size() != n || limit_bytes.size() != n || orders.size() != n) {
    return absl::InvalidArgumentError("group '" + config->group +
                                      "': eviction must be of each of its " + std::to_string(n) +
                                      " tables, or of none");
  }
  const RowLayout layout = LayoutOf(*config);
  for (size_t t = 0; t < n; ++t) {
    const std::string table = "table '" + config->tables[t].name + "': ";
    EvictionConfig& eviction = config->tables[t].eviction;
    eviction.ttl_steps = ttl_steps[t];
    eviction.has_oldest_step = have_oldest_step[t];
    eviction.min_norm = min_norms[t];
    eviction.max_rows = limit_rows[t];
    eviction.max_bytes = limit_bytes[t];
    TF_RETURN_IF_ERROR(ToTensorFlow(
        ParseName(table + "eviction order", kEvictionOrders, orders[t], &eviction.order)));
    if (ttl_steps[t] < 0 || !(min_norms[t] >= 0) || limit_rows[t] < 0 || limit_bytes[t] < 0) {
      return absl::InvalidArgumentError(table + "the numbers of its eviction must be at least 0");
    }
    const int64_t least_bytes = TableEviction::LeastBytes(layout, config->tables[t].admission,
                                                          EvictedBytesPerTable(*config));
    if (limit_bytes[t] > 0 && limit_bytes[t] < least_bytes) {
      return absl::InvalidArgumentError(
          table + "max_bytes must be at least " + std::to_string(least_bytes) +
          " per parameter server but is " + std::to_string(limit_bytes[t]));
    }
  }
  return absl::OkStatus();
}

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_OPS_EVICTION_ATTRIBUTES_H_
