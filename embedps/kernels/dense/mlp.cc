#include "embedps/kernels/dense/mlp.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "embedps/kernels/dense/panels.h"
#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

// The panels of this many blocks of rows are multiplied into the weights' gradients together. They
// fit into the second-level cache.
constexpr int64_t kChunkBlocks = 16;

// Returns how many of n values lie in block `block`.
int InBlock(int64_t n, int64_t block) {
  return static_cast<int>(std::min<int64_t>(kBlock, n - block * kBlock));
}

// Adds the bias to sums [32][32] and applies ReLU.
EMBEDPS_SIMD void AddBias(const float* __restrict bias, bool relu, float* __restrict sums) {
  for (int row = 0; row < kBlock; ++row) {
    float* __restrict x = sums + row * kBlock;
    // A NaN fails the comparison and stays a NaN.
    if (relu) {
      for (int n = 0; n < kBlock; ++n) {
        const float y = x[n] + bias[n];
        x[n] = y < 0 ? 0.0f : y;
      }
    } else {
      for (int n = 0; n < kBlock; ++n) x[n] += bias[n];
    }
  }
}

// Sets the gradient to zero where the ReLU's output was zero.
EMBEDPS_SIMD void Mask(const Bf16* __restrict output, Bf16* __restrict gradient) {
  for (int i = 0; i < kStepValues; ++i) {
    gradient[i] = static_cast<int16_t>(output[i]) > 0 ? gradient[i] : Bf16{0};
  }
}

EMBEDPS_SIMD void Add(const float* __restrict from, int n, float* __restrict to) {
  for (int i = 0; i < n; ++i) to[i] += from[i];
}

// Packs rows [first_row, first_row + num_rows) of matrices, side by side, into a left panel. Fills
// it with zeros past the last row and column.
void PackLeft(const std::vector<MlpMatrix>& matrices, int64_t first_row, int num_rows,
              int64_t num_blocks, Bf16* row, Bf16* panel) {
  std::fill_n(row, num_blocks * kBlock, Bf16{0});
  for (int r = 0; r < kBlock; ++r) {
    int64_t at = 0;
    for (const MlpMatrix& m : matrices) {
      if (m.width == 0) continue;  // it may have no data
      const int64_t from = (first_row + r) * m.width;
      if (r >= num_rows) {
        std::memset(row + at, 0, sizeof(Bf16) * m.width);
      } else if (m.is_bf16) {
        std::memcpy(row + at, static_cast<const Bf16*>(m.data) + from, sizeof(Bf16) * m.width);
      } else {
        RoundToBf16(static_cast<const float*>(m.data) + from, m.width, row + at);
      }
      at += m.width;
    }
    for (int64_t k = 0; k < num_blocks; ++k) {
      std::memcpy(panel + k * kStepValues + r * kBlock, row + k * kBlock, sizeof(Bf16) * kBlock);
    }
  }
}

// Splits rows of float32 [num_rows, stride] into matrices that lie side by side.
void Unpack(const float* rows, int64_t stride, int64_t first_row, int num_rows,
            const std::vector<MlpMatrix>& matrices) {
  for (int r = 0; r < num_rows; ++r) {
    const float* from = rows + r * stride;
    for (const MlpMatrix& m : matrices) {
      if (m.width == 0) continue;
      const int64_t to = (first_row + r) * m.width;
      if (m.is_bf16) {
        RoundToBf16(from, m.width, static_cast<Bf16*>(m.data) + to);
      } else {
        std::memcpy(static_cast<float*>(m.data) + to, from, sizeof(float) * m.width);
      }
      from += m.width;
    }
  }
}

// Numbers the blocks of all layers in one sequence, and calls work(layer, begin, end) for ranges of
// one layer's blocks, in parallel.
template <typename Work>
void ForEachBlock(const std::vector<int64_t>& blocks_of_layer, int64_t cost,
                  const ParallelFor& parallel, const Work& work) {
  int64_t total = 0;
  for (int64_t blocks : blocks_of_layer) total += blocks;
  parallel(total, cost, [&](int64_t begin, int64_t end) {
    int64_t first = 0;
    for (size_t l = 0; l < blocks_of_layer.size(); first += blocks_of_layer[l], ++l) {
      const int64_t from = std::max(begin, first);
      const int64_t to = std::min(end, first + blocks_of_layer[l]);
      if (from < to) work(static_cast<int>(l), from - first, to - first);
    }
  });
}

// Prepares the calling thread for products, and ends that with the scope.
class GemmScope {
 public:
  explicit GemmScope(const BlockGemm& gemm) : gemm_(gemm) { gemm_.begin(); }
  ~GemmScope() { gemm_.end(); }
  GemmScope(const GemmScope&) = delete;
  GemmScope& operator=(const GemmScope&) = delete;

 private:
  const BlockGemm& gemm_;
};

}  // namespace

Mlp::Mlp(std::vector<MlpLayer> layers, bool final_relu, const BlockGemm& gemm)
    : layers_(std::move(layers)), final_relu_(final_relu), gemm_(gemm) {
  panels_.push_back(0);
  for (const MlpLayer& l : layers_) {
    panels_.push_back(panels_.back() + NumBlocks(l.num_inputs) * kStepValues);
  }
  if (final_relu_) {
    panels_.push_back(panels_.back() + NumBlocks(layers_.back().num_outputs) * kStepValues);
  }
}

int64_t Mlp::MaxWidth() const {
  int64_t blocks = 0;
  for (const MlpLayer& l : layers_) {
    blocks = std::max({blocks, NumBlocks(l.num_inputs), NumBlocks(l.num_outputs)});
  }
  return blocks * kBlock;
}

int64_t Mlp::SavedSize(int64_t batch) const { return NumBlocks(batch) * panels_.back(); }

int64_t Mlp::ForwardScratchSize() const {
  int64_t size = 0;
  for (const MlpLayer& l : layers_) {
    size += NumBlocks(l.num_inputs) * NumBlocks(l.num_outputs) * kStepValues;
  }
  return size;
}

int64_t Mlp::BackwardScratchSize(int64_t batch) const {
  const int64_t row_blocks = NumBlocks(batch);
  int64_t size = ForwardScratchSize();
  for (const MlpLayer& l : layers_) {
    size += row_blocks * (NumBlocks(l.num_inputs) + NumBlocks(l.num_outputs)) * kStepValues;
    size += row_blocks * NumBlocks(l.num_outputs) * kBlock * 2;  // float32 sums for the biases
  }
  return size;
}

struct Mlp::ForwardPass {
  const std::vector<MlpMatrix>& inputs;
  int64_t batch;
  const MlpMatrix& out;
  Bf16* saved;
  // Right panels of each layer's kernel: per block of outputs, the steps of the inputs.
  std::vector<Bf16*> kernels;
  std::vector<int64_t> blocks;  // of each layer's outputs
  int64_t row_cost = 0;         // cycles per block of rows, roughly
};

void Mlp::Forward(const std::vector<MlpMatrix>& inputs, int64_t batch, const ParallelFor& parallel,
                  Bf16* scratch, Bf16* saved, const MlpMatrix& out) const {
  ForwardPass pass{inputs, batch, out, saved, {}, {}};
  for (const MlpLayer& l : layers_) {
    pass.kernels.push_back(scratch);
    scratch += NumBlocks(l.num_inputs) * NumBlocks(l.num_outputs) * kStepValues;
    pass.blocks.push_back(NumBlocks(l.num_outputs));
    pass.row_cost += NumBlocks(l.num_inputs) * NumBlocks(l.num_outputs) * 100;
  }
  ForEachBlock(pass.blocks, 20000, parallel, [&](int l, int64_t begin, int64_t end) {
    const MlpLayer& layer = layers_[l];
    const int64_t steps = NumBlocks(layer.num_inputs);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t k = 0; k < steps; ++k) {
        PackRight(layer.kernel + k * kBlock * layer.num_outputs + n * kBlock, layer.num_outputs,
                  layer.num_inputs - k * kBlock, layer.num_outputs - n * kBlock,
                  pass.kernels[l] + (n * steps + k) * kStepValues);
      }
    }
  });
  parallel(NumBlocks(batch), pass.row_cost,
           [&](int64_t begin, int64_t end) { ForwardRows(pass, begin, end); });
}

void Mlp::ForwardRows(const ForwardPass& pass, int64_t begin, int64_t end) const {
  const GemmScope scope(gemm_);
  std::vector<Bf16> row(MaxWidth());
  const int64_t out_stride = NumBlocks(pass.out.width) * kBlock;
  std::vector<float> rows(kBlock * out_stride);
  for (int64_t b = begin; b < end; ++b) {
    Bf16* panels = pass.saved + b * panels_.back();
    const int num_rows = InBlock(pass.batch, b);
    PackLeft(pass.inputs, b * kBlock, num_rows, NumBlocks(layers_[0].num_inputs), row.data(),
             panels);
    for (int l = 0; l < num_layers(); ++l) ForwardLayer(pass, l, num_rows, panels, rows.data());
    Unpack(rows.data(), out_stride, b * kBlock, num_rows, {pass.out});
  }
}

void Mlp::ForwardLayer(const ForwardPass& pass, int l, int num_rows, Bf16* panels,
                       float* rows) const {
  const MlpLayer& layer = layers_[l];
  const int64_t steps = NumBlocks(layer.num_inputs);
  const int64_t out_stride = NumBlocks(pass.out.width) * kBlock;
  const bool last = l + 1 == num_layers();
  const bool relu = !last || final_relu_;
  alignas(64) float sums[kStepValues];
  for (int64_t n = 0; n < pass.blocks[l]; ++n) {
    float bias[kBlock] = {};
    std::memcpy(bias, layer.bias + n * kBlock, sizeof(float) * InBlock(layer.num_outputs, n));
    gemm_.multiply(panels + panels_[l], pass.kernels[l] + n * steps * kStepValues,
                   {layer.num_inputs, kBlock, InBlock(layer.num_outputs, n)}, sums);
    AddBias(bias, relu, sums);
    if (relu) gemm_.round(sums, panels + panels_[l + 1] + n * kStepValues);
    for (int r = 0; last && r < num_rows; ++r) {
      std::memcpy(rows + r * out_stride + n * kBlock, sums + r * kBlock, sizeof(float) * kBlock);
    }
  }
}

struct Mlp::BackwardPass {
  const MlpMatrix& upstream;
  const Bf16* saved;
  int64_t batch;
  int64_t row_blocks;
  const std::vector<MlpMatrix>& input_gradients;
  // Right panels of each layer's transposed kernel: per block of inputs, the steps of the outputs.
  std::vector<Bf16*> kernels;
  // Left panels of each layer's transposed inputs, and right panels of its outputs' gradients.
  // Their steps are blocks of rows.
  std::vector<Bf16*> inputs, outputs;
  std::vector<float*> bias_sums;  // of each layer: the outputs' gradients summed per block of rows
  std::vector<int64_t> blocks;    // of each layer's inputs
  int64_t row_cost = 0;           // cycles per block of rows, roughly
};

void Mlp::Backward(const MlpMatrix& upstream, const Bf16* saved, int64_t batch,
                   const ParallelFor& parallel, Bf16* scratch,
                   const std::vector<MlpMatrix>& input_gradients,
                   const std::vector<MlpLayerGradient>& gradients) const {
  BackwardPass pass{upstream, saved, batch, NumBlocks(batch), input_gradients, {}, {}, {}, {}, {}};
  DivideScratch(scratch, &pass);
  ForEachBlock(pass.blocks, 20000, parallel, [&](int l, int64_t begin, int64_t end) {
    const MlpLayer& layer = layers_[l];
    const int64_t steps = NumBlocks(layer.num_outputs);
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t n = 0; n < steps; ++n) {
        PackRightTransposed(layer.kernel + k * kBlock * layer.num_outputs + n * kBlock,
                            layer.num_outputs, layer.num_outputs - n * kBlock,
                            layer.num_inputs - k * kBlock,
                            pass.kernels[l] + (k * steps + n) * kStepValues);
      }
    }
  });
  parallel(pass.row_blocks, pass.row_cost,
           [&](int64_t begin, int64_t end) { BackwardRows(pass, begin, end); });
  // A layer's first block of inputs sums its bias too. A layer without inputs has only that one.
  std::vector<int64_t> weight_blocks = pass.blocks;
  for (int64_t& n : weight_blocks) n = std::max<int64_t>(1, n);
  ForEachBlock(weight_blocks, pass.row_blocks * 1500, parallel,
               [&](int l, int64_t begin, int64_t end) {
                 SumKernelGradient(pass, l, begin, std::min(end, pass.blocks[l]), gradients[l]);
                 if (begin == 0) SumBiasGradient(pass, l, gradients[l]);
               });
}

void Mlp::DivideScratch(Bf16* scratch, BackwardPass* pass) const {
  for (const MlpLayer& l : layers_) {
    const int64_t in = NumBlocks(l.num_inputs), out = NumBlocks(l.num_outputs);
    pass->blocks.push_back(in);
    pass->kernels.push_back(scratch);
    scratch += in * out * kStepValues;
    pass->inputs.push_back(scratch);
    scratch += in * pass->row_blocks * kStepValues;
    pass->outputs.push_back(scratch);
    scratch += out * pass->row_blocks * kStepValues;
    pass->bias_sums.push_back(reinterpret_cast<float*>(scratch));
    scratch += pass->row_blocks * out * kBlock * 2;
    pass->row_cost += in * out * 100 + (in + out) * 300;
  }
}

void Mlp::BackwardRows(const BackwardPass& pass, int64_t begin, int64_t end) const {
  const GemmScope scope(gemm_);
  const int64_t width = MaxWidth();
  std::vector<Bf16> row(width);
  std::vector<Bf16> buffers(2 * kBlock * width + 32);
  Bf16* gradient = AlignedBf16(buffers.data());
  Bf16* next = gradient + kBlock * width;
  const int64_t stride = pass.blocks[0] * kBlock;
  std::vector<float> rows(kBlock * stride);
  for (int64_t b = begin; b < end; ++b) {
    const Bf16* panels = pass.saved + b * panels_.back();
    const int num_rows = InBlock(pass.batch, b);
    const int64_t last_blocks = NumBlocks(layers_.back().num_outputs);
    PackLeft({pass.upstream}, b * kBlock, num_rows, last_blocks, row.data(), gradient);
    for (int64_t n = 0; final_relu_ && n < last_blocks; ++n) {
      Mask(panels + panels_[num_layers()] + n * kStepValues, gradient + n * kStepValues);
    }
    for (int l = num_layers() - 1; l >= 0; --l) {
      BackwardLayer(pass, l, b, gradient, next, rows.data());
      std::swap(gradient, next);
    }
    if (!pass.input_gradients.empty()) {
      Unpack(rows.data(), stride, b * kBlock, num_rows, pass.input_gradients);
    }
  }
}

void Mlp::BackwardLayer(const BackwardPass& pass, int l, int64_t b, const Bf16* gradient,
                        Bf16* next, float* rows) const {
  const MlpLayer& layer = layers_[l];
  const int64_t steps = NumBlocks(layer.num_outputs);
  float* bias_sums = pass.bias_sums[l] + b * steps * kBlock;
  for (int64_t n = 0; n < steps; ++n) {
    gemm_.left_to_right(gradient + n * kStepValues,
                        pass.outputs[l] + (n * pass.row_blocks + b) * kStepValues,
                        bias_sums + n * kBlock);
  }
  const Bf16* panels = pass.saved + b * panels_.back();
  const int num_rows = InBlock(pass.batch, b);
  const int64_t stride = pass.blocks[0] * kBlock;
  alignas(64) float sums[kStepValues];
  for (int64_t k = 0; k < pass.blocks[l]; ++k) {
    const Bf16* input = panels + panels_[l] + k * kStepValues;
    gemm_.turn(input, pass.inputs[l] + (k * pass.row_blocks + b) * kStepValues);
    if (l == 0 && pass.input_gradients.empty()) continue;
    gemm_.multiply(gradient, pass.kernels[l] + k * steps * kStepValues,
                   {layer.num_outputs, kBlock, InBlock(layer.num_inputs, k)}, sums);
    if (l > 0) {
      gemm_.round(sums, next + k * kStepValues);
      Mask(input, next + k * kStepValues);
    } else {
      for (int r = 0; r < num_rows; ++r) {
        std::memcpy(rows + r * stride + k * kBlock, sums + r * kBlock, sizeof(float) * kBlock);
      }
    }
  }
}

void Mlp::SumKernelGradient(const BackwardPass& pass, int l, int64_t begin, int64_t end,
                            const MlpLayerGradient& gradient) const {
  const GemmScope scope(gemm_);
  alignas(64) float sums[kStepValues];
  const MlpLayer& layer = layers_[l];
  const int64_t out_blocks = NumBlocks(layer.num_outputs), row_blocks = pass.row_blocks;
  float* to = gradient.kernel;
  if (row_blocks == 0) {
    const int64_t last = std::min<int64_t>(end * kBlock, layer.num_inputs);
    std::fill(to + begin * kBlock * layer.num_outputs, to + last * layer.num_outputs, 0.0f);
  }
  for (int64_t chunk = 0; chunk < row_blocks; chunk += kChunkBlocks) {
    const int64_t steps = std::min(kChunkBlocks, row_blocks - chunk);
    for (int64_t k = begin; k < end; ++k) {
      const int num_rows = InBlock(layer.num_inputs, k);
      for (int64_t n = 0; n < out_blocks; ++n) {
        const int columns = InBlock(layer.num_outputs, n);
        gemm_.multiply_turned(pass.inputs[l] + (k * row_blocks + chunk) * kStepValues,
                              pass.outputs[l] + (n * row_blocks + chunk) * kStepValues,
                              {steps * kBlock, num_rows, columns}, sums);
        for (int r = 0; r < num_rows; ++r) {
          float* row = to + (k * kBlock + r) * layer.num_outputs + n * kBlock;
          if (chunk == 0) {
            std::memcpy(row, sums + r * kBlock, sizeof(float) * columns);
          } else {
            Add(sums + r * kBlock, columns, row);
          }
        }
      }
    }
  }
}

void Mlp::SumBiasGradient(const BackwardPass& pass, int l, const MlpLayerGradient& gradient) const {
  const int num_outputs = layers_[l].num_outputs;
  const int64_t out_blocks = NumBlocks(num_outputs);
  std::fill_n(gradient.bias, num_outputs, 0.0f);
  for (int64_t b = 0; b < pass.row_blocks; ++b) {
    Add(pass.bias_sums[l] + b * out_blocks * kBlock, num_outputs, gradient.bias);
  }
}

}  // namespace embedps
