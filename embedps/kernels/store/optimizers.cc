#include "embedps/kernels/store/optimizers.h"

#include <cfloat>
#include <cmath>

#include "embedps/kernels/runtime/simd.h"

// A product and a sum are rounded each, as without vectors and in NumPy. Otherwise the compiler
// would fuse them where the CPU can, and a row's bits would depend on the CPU.
#pragma GCC optimize("fp-contract=off")

namespace embedps {
namespace {

EMBEDPS_SIMD void Sgd(int dim, float lr, const float* __restrict g, float* __restrict w) {
  for (int i = 0; i < dim; ++i) w[i] -= lr * g[i];
}

EMBEDPS_SIMD void Adagrad(int dim, float lr, float eps, const float* __restrict g,
                          float* __restrict w, float* __restrict a) {
  for (int i = 0; i < dim; ++i) {
    a[i] += g[i] * g[i];
    w[i] -= lr * g[i] / (std::sqrt(a[i]) + eps);
  }
}

EMBEDPS_SIMD void RowwiseAdagrad(int dim, float lr, float eps, const float* __restrict g,
                                 float* __restrict w, float* __restrict a) {
  float sum = 0;
  for (int i = 0; i < dim; ++i) sum += g[i] * g[i];
  a[0] += sum / static_cast<float>(dim);
  const float scale = lr / (std::sqrt(a[0]) + eps);
  for (int i = 0; i < dim; ++i) w[i] -= scale * g[i];
}

EMBEDPS_SIMD void LazyAdam(int dim, float lr, float beta1, float beta2, float eps,
                           float correction1, float correction2, const float* __restrict g,
                           float* __restrict w, float* __restrict m, float* __restrict v) {
  for (int i = 0; i < dim; ++i) {
    m[i] = beta1 * m[i] + (1 - beta1) * g[i];
    v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
    w[i] -= lr * (m[i] * correction1) / (std::sqrt(v[i] * correction2) + eps);
  }
}

EMBEDPS_SIMD void Ftrl(int dim, float lr, float l1, float l2, const float* __restrict g,
                       float* __restrict w, float* __restrict z, float* __restrict n) {
  for (int i = 0; i < dim; ++i) {
    const float n_new = n[i] + g[i] * g[i];
    const float root = std::sqrt(n_new);
    z[i] += g[i] - (root - std::sqrt(n[i])) / lr * w[i];
    n[i] = n_new;
    w[i] = std::fabs(z[i]) <= l1 ? 0.0f : (std::copysign(l1, z[i]) - z[i]) / (root / lr + 2 * l2);
  }
}

EMBEDPS_SIMD void Scale(int dim, float by, float* __restrict w) {
  for (int i = 0; i < dim; ++i) w[i] *= by;
}

// An optimizer slot, and the value with which each of its floats starts.
struct NewSlot {
  OptimizerSlot slot;
  float start;
};

std::vector<NewSlot> NewSlots(const OptimizerConfig& config, int dim) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return {};
    case OptimizerKind::kAdagrad:
      return {{{"accumulator", dim}, config.initial_accumulator}};
    case OptimizerKind::kRowwiseAdagrad:
      return {{{"accumulator", 1}, config.initial_accumulator}};
    case OptimizerKind::kLazyAdam:
      return {{{"m", dim}, 0}, {{"v", dim}, 0}};
    case OptimizerKind::kFtrl:
      return {{{"linear", dim}, 0}, {{"accumulator", dim}, config.initial_accumulator}};
  }
  return {};
}

}  // namespace

void OptimizerConfig::Read(Settings* settings) {
  settings->Name("optimizer", kOptimizerKinds, &kind);
  settings->Number("initial_accumulator", 0, FLT_MAX, &initial_accumulator);
  settings->Number("epsilon", 0, FLT_MAX, &epsilon);
  settings->Number("beta1", 0, 1, &beta1);
  settings->Number("beta2", 0, 1, &beta2);
  settings->Number("l1", 0, FLT_MAX, &l1);
  settings->Number("l2", 0, FLT_MAX, &l2);
  settings->Number("weight_decay", 0, FLT_MAX, &weight_decay);
  settings->Number("lazy_decay", 0, FLT_MAX, &lazy_decay);
}

std::vector<OptimizerSlot> OptimizerSlots(const OptimizerConfig& config, int dim) {
  std::vector<OptimizerSlot> slots;
  for (const NewSlot& each : NewSlots(config, dim)) slots.push_back(each.slot);
  return slots;
}

std::vector<float> InitialOptimizerSlots(const OptimizerConfig& config, int dim) {
  std::vector<float> slots;
  for (const NewSlot& each : NewSlots(config, dim)) {
    slots.insert(slots.end(), each.slot.width, each.start);
  }
  return slots;
}

namespace {

void ApplyGradient(const OptimizerConfig& config, int dim, float learning_rate,
                   uint32_t update_number, const float* gradient, float* embedding,
                   float* optimizer_slots) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return Sgd(dim, learning_rate, gradient, embedding);
    case OptimizerKind::kAdagrad:
      return Adagrad(dim, learning_rate, config.epsilon, gradient, embedding, optimizer_slots);
    case OptimizerKind::kRowwiseAdagrad:
      return RowwiseAdagrad(dim, learning_rate, config.epsilon, gradient, embedding,
                            optimizer_slots);
    case OptimizerKind::kLazyAdam: {
      const double t = update_number;
      const float correction1 = static_cast<float>(1 / (1 - std::pow(double{config.beta1}, t)));
      const float correction2 = static_cast<float>(1 / (1 - std::pow(double{config.beta2}, t)));
      return LazyAdam(dim, learning_rate, config.beta1, config.beta2, config.epsilon, correction1,
                      correction2, gradient, embedding, optimizer_slots, optimizer_slots + dim);
    }
    case OptimizerKind::kFtrl:
      return Ftrl(dim, learning_rate, config.l1, config.l2, gradient, embedding, optimizer_slots,
                  optimizer_slots + dim);
  }
}

}  // namespace

void ApplyUpdate(const OptimizerConfig& config, int dim, float learning_rate,
                 uint32_t update_number, uint32_t passed, const float* gradient, float* embedding,
                 float* optimizer_slots) {
  if (config.weight_decay > 0) Scale(dim, 1 - learning_rate * config.weight_decay, embedding);
  ApplyGradient(config, dim, learning_rate, update_number, gradient, embedding, optimizer_slots);
  if (config.lazy_decay > 0 && passed > 0) {
    const float rate = learning_rate * config.lazy_decay * static_cast<float>(passed);
    Scale(dim, 1 / (1 + rate), embedding);
  }
}

uint32_t StepsPassed(uint32_t updates, uint32_t last_step, uint32_t step) {
  if (updates == 0) return 1;
  return step > last_step ? step - last_step : 0;
}

}  // namespace embedps
