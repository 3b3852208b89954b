#include "embedps/kernels/store/vector_function.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace embedps {
namespace {

std::atomic<VectorFunction> vector_function{nullptr};

}  // namespace

void SetVectorFunction(VectorFunction function) { vector_function = function; }

Status NewVectors::Compute(int table, const std::string& name, std::vector<int64_t> ids, int dim) {
  const VectorFunction function = vector_function;
  if (function == nullptr) {
    return Status::InvalidArgument("this process has no Python to call " + name + " with");
  }
  std::sort(ids.begin(), ids.end());
  OfTable made{table, dim, std::move(ids), {}};
  made.vectors.resize(made.ids.size() * dim);
  std::vector<char> error(1024);
  const int failed =
      function(name.c_str(), made.ids.data(), static_cast<int64_t>(made.ids.size()), dim,
               made.vectors.data(), error.data(), static_cast<int64_t>(error.size()));
  if (failed != 0) return Status::InvalidArgument(error.data());
  tables_.push_back(std::move(made));
  return Status::Ok();
}

const float* NewVectors::Find(int table, int64_t id) const {
  for (const OfTable& of : tables_) {
    if (of.table != table) continue;
    const auto found = std::lower_bound(of.ids.begin(), of.ids.end(), id);
    if (found == of.ids.end() || *found != id) return nullptr;
    return of.vectors.data() + (found - of.ids.begin()) * of.dim;
  }
  return nullptr;
}

}  // namespace embedps
