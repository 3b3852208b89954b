// A multilayer perceptron in bfloat16 with float32 weights, forward and backward: every layer but
// the last is followed by ReLU. Sums are float32; activations and the gradients that flow between
// layers are rounded to bfloat16, as Keras's mixed_bfloat16 does. Results do not depend on the
// number of threads.
#ifndef EMBEDPS_KERNELS_DENSE_MLP_H_
#define EMBEDPS_KERNELS_DENSE_MLP_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/dense/block_gemm.h"
#include "embedps/kernels/runtime/parallel.h"

namespace embedps {

struct MlpLayer {
  int num_inputs = 0;
  int num_outputs = 0;
  const float* kernel = nullptr;  // [num_inputs, num_outputs]
  const float* bias = nullptr;    // [num_outputs]; not read backward
};

// A matrix [batch, width] of float32 or bfloat16. An input may be of several, side by side.
struct MlpMatrix {
  void* data = nullptr;
  bool is_bf16 = false;
  int width = 0;
};

struct MlpLayerGradient {
  float* kernel = nullptr;  // [num_inputs, num_outputs]
  float* bias = nullptr;    // [num_outputs]
};

class Mlp {
 public:
  // Layer l + 1 has as many inputs as layer l has outputs.
  Mlp(std::vector<MlpLayer> layers, bool final_relu, const BlockGemm& gemm);

  // Sizes in bfloat16 values: of what Forward leaves for Backward, and of their scratch.
  int64_t SavedSize(int64_t batch) const;
  int64_t ForwardScratchSize() const;
  int64_t BackwardScratchSize(int64_t batch) const;

  // Buffers of bfloat16 must be aligned to 64 bytes.
  void Forward(const std::vector<MlpMatrix>& inputs, int64_t batch, const ParallelFor& parallel,
               Bf16* scratch, Bf16* saved, const MlpMatrix& out) const;

  // `input_gradients` are as many as Forward's inputs, or none.
  void Backward(const MlpMatrix& upstream, const Bf16* saved, int64_t batch,
                const ParallelFor& parallel, Bf16* scratch,
                const std::vector<MlpMatrix>& input_gradients,
                const std::vector<MlpLayerGradient>& gradients) const;

 private:
  int num_layers() const { return static_cast<int>(layers_.size()); }
  int64_t MaxWidth() const;

  const std::vector<MlpLayer> layers_;
  const bool final_relu_;
  const BlockGemm gemm_;
  // Panels of a block of rows in `saved`: the input of each layer, and the output after a final
  // ReLU. Offsets in values; the last is their sum.
  std::vector<int64_t> panels_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_MLP_H_
