// Sparse optimizers: how a row's gradient changes its embedding and its optimizer slots.
#ifndef EMBEDPS_KERNELS_STORE_OPTIMIZERS_H_
#define EMBEDPS_KERNELS_STORE_OPTIMIZERS_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/settings.h"

namespace embedps {

enum class OptimizerKind { kSgd, kAdagrad, kRowwiseAdagrad, kLazyAdam, kFtrl };
inline constexpr const char* kOptimizerKinds[] = {"sgd", "adagrad", "rowwise_adagrad", "lazy_adam",
                                                  "ftrl"};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  float initial_accumulator = 0;  // Adagrad, row-wise Adagrad, FTRL
  float epsilon = 0;              // Adagrad, row-wise Adagrad, lazy Adam
  float beta1 = 0;                // lazy Adam
  float beta2 = 0;
  float l1 = 0;  // FTRL
  float l2 = 0;
  float weight_decay = 0;  // all but FTRL
  float lazy_decay = 0;    // all but FTRL

  void Read(Settings* settings);
  bool divides_by_learning_rate() const { return kind == OptimizerKind::kFtrl; }
};

// Lists the optimizer slots of a row, in the order in which they follow the embedding.
std::vector<OptimizerSlot> OptimizerSlots(const OptimizerConfig& config, int dim);

// Returns all optimizer slots of a new row.
std::vector<float> InitialOptimizerSlots(const OptimizerConfig& config, int dim);

// Applies a gradient [dim] to a row. It is the row's `update_number`-th update; the first is 1.
//
// First the weights decay, apart from the gradient (Loshchilov, Hutter 2019): w -= lr decay w. Rows
// that a step does not touch do not decay.
//
// The lazy decay comes last, and makes up for the `passed` steps since the row's last update, as
// the proximal step of an L2 penalty does: w /= 1 + lr decay passed.
//
// SGD: w -= lr g.
//
// Adagrad (Duchi et al. 2011): a += g^2; w -= lr g / (sqrt(a) + eps).
//
// Row-wise Adagrad, with one accumulator per row, as in FBGEMM: a += mean(g^2);
// w -= lr g / (sqrt(a) + eps).
//
// Lazy Adam (Kingma, Ba 2015): updates m and v of touched rows only. The bias correction uses the
// row's own number of updates: w -= lr m' / (sqrt(v') + eps).
//
// FTRL-proximal (McMahan et al. 2013) with power 1/2, as in tf.keras.optimizers.Ftrl:
// s = (sqrt(n + g^2) - sqrt(n)) / lr; z += g - s w; n += g^2;
// w = |z| <= l1 ? 0 : (sign(z) l1 - z) / (sqrt(n) / lr + 2 l2).
void ApplyUpdate(const OptimizerConfig& config, int dim, float learning_rate,
                 uint32_t update_number, uint32_t passed, const float* gradient, float* embedding,
                 float* optimizer_slots);

// Returns how many steps an update at `step` makes up for: those since the row's last update, or 1
// if it is its first (`updates` is 0).
uint32_t StepsPassed(uint32_t updates, uint32_t last_step, uint32_t step);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_OPTIMIZERS_H_
