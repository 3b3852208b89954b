// A multilayer perceptron in bfloat16 with float32 weights, forward and backward. ReLU follows
// every layer but the last. Sums are float32. Activations and the gradients between layers are
// rounded to bfloat16, as Keras's mixed_bfloat16 does. Results do not depend on the number of
// threads.
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

// A matrix [batch, width] of float32 or bfloat16. Several of them, side by side, may form one
// input.
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

  // Sizes in bfloat16 values: of the buffer that Forward saves for Backward, and of the scratch
  // buffers.
  int64_t SavedSize(int64_t batch) const;
  int64_t ForwardScratchSize() const;
  int64_t BackwardScratchSize(int64_t batch) const;

  // Buffers of bfloat16 must be aligned to 64 bytes. `saved` is an output: Backward reads it.
  void Forward(const std::vector<MlpMatrix>& inputs, int64_t batch, const ParallelFor& parallel,
               Bf16* scratch, Bf16* saved, const MlpMatrix& out) const;

  // `input_gradients` has as many matrices as Forward had inputs, or none.
  void Backward(const MlpMatrix& upstream, const Bf16* saved, int64_t batch,
                const ParallelFor& parallel, Bf16* scratch,
                const std::vector<MlpMatrix>& input_gradients,
                const std::vector<MlpLayerGradient>& gradients) const;

 private:
  // The arguments of one call, with the scratch memory divided among the layers.
  struct ForwardPass;
  struct BackwardPass;

  int num_layers() const { return static_cast<int>(layers_.size()); }
  int64_t MaxWidth() const;

  // Computes the outputs of row blocks [begin, end).
  void ForwardRows(const ForwardPass& pass, int64_t begin, int64_t end) const;
  // Computes one layer's output for one block of rows, whose `panels` lie in `saved`. The last
  // layer writes float32 `rows`.
  void ForwardLayer(const ForwardPass& pass, int l, int num_rows, Bf16* panels, float* rows) const;

  void DivideScratch(Bf16* scratch, BackwardPass* pass) const;
  // Computes the gradients of row blocks [begin, end) with respect to each layer's inputs.
  void BackwardRows(const BackwardPass& pass, int64_t begin, int64_t end) const;
  // Takes the gradient of layer l's outputs for row block b to `next`, that of its inputs. The
  // first layer writes float32 `rows` instead. Also prepares the panels for the weights' gradients.
  void BackwardLayer(const BackwardPass& pass, int l, int64_t b, const Bf16* gradient, Bf16* next,
                     float* rows) const;
  // Sums layer l's kernel gradient over all rows, for its input blocks [begin, end).
  void SumKernelGradient(const BackwardPass& pass, int l, int64_t begin, int64_t end,
                         const MlpLayerGradient& gradient) const;
  void SumBiasGradient(const BackwardPass& pass, int l, const MlpLayerGradient& gradient) const;

  const std::vector<MlpLayer> layers_;
  const bool final_relu_;
  const BlockGemm gemm_;
  // Where the panels of a block of rows begin in `saved`, in values: the input of each layer, and
  // the output of a final ReLU. The last entry is their total size.
  std::vector<int64_t> panels_;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_MLP_H_
