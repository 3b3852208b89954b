#include "embedps/kernels/dense/mlp.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "embedps/kernels/dense/panels.h"
#include "embedps/kernels/runtime/simd.h"

namespace embedps {
namespace {

// Blocks of rows whose panels are multiplied together into the weights' gradients before the next:
// so many as the second-level cache holds.
constexpr int64_t kChunkBlocks = 16;

// How many of n values stand in block `block`.
int InBlock(int64_t n, int64_t block) {
  return static_cast<int>(std::min<int64_t>(kBlock, n - block * kBlock));
}

// sums [32][32] + bias, through ReLU.
EMBEDPS_SIMD void AddBias(const float* __restrict bias, bool relu, float* __restrict sums) {
  for (int row = 0; row < kBlock; ++row) {
    float* __restrict x = sums + row * kBlock;
    // A comparison that a NaN fails leaves it as it is.
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

// Zero where the ReLU's output was.
EMBEDPS_SIMD void Mask(const Bf16* __restrict output, Bf16* __restrict gradient) {
  for (int i = 0; i < kStepValues; ++i) {
    gradient[i] = static_cast<int16_t>(output[i]) > 0 ? gradient[i] : Bf16{0};
  }
}

EMBEDPS_SIMD void Add(const float* __restrict from, int n, float* __restrict to) {
  for (int i = 0; i < n; ++i) to[i] += from[i];
}

// Rows [first_row, first_row + num_rows) of matrices side by side to a left panel, zeros past the
// last row and column.
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

// Rows of float32 [num_rows, stride] to matrices side by side.
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

// Calls work(layer, block) for blocks counted over the layers, in ranges.
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

// A thread's products.
class Multiplying {
 public:
  explicit Multiplying(const BlockGemm& gemm) : gemm_(gemm) { gemm_.begin(); }
  ~Multiplying() { gemm_.end(); }
  Multiplying(const Multiplying&) = delete;
  Multiplying& operator=(const Multiplying&) = delete;

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

void Mlp::Forward(const std::vector<MlpMatrix>& inputs, int64_t batch, const ParallelFor& parallel,
                  Bf16* scratch, Bf16* saved, const MlpMatrix& out) const {
  // Right panels of the kernels: for each block of a layer's outputs its inputs' steps.
  std::vector<Bf16*> kernels;
  std::vector<int64_t> blocks;
  int64_t row_cost = 0;
  for (const MlpLayer& l : layers_) {
    kernels.push_back(scratch);
    scratch += NumBlocks(l.num_inputs) * NumBlocks(l.num_outputs) * kStepValues;
    blocks.push_back(NumBlocks(l.num_outputs));
    row_cost += NumBlocks(l.num_inputs) * NumBlocks(l.num_outputs) * 100;
  }
  ForEachBlock(blocks, 20000, parallel, [&](int l, int64_t begin, int64_t end) {
    const MlpLayer& layer = layers_[l];
    const int64_t steps = NumBlocks(layer.num_inputs);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t k = 0; k < steps; ++k) {
        PackRight(layer.kernel + k * kBlock * layer.num_outputs + n * kBlock, layer.num_outputs,
                  layer.num_inputs - k * kBlock, layer.num_outputs - n * kBlock,
                  kernels[l] + (n * steps + k) * kStepValues);
      }
    }
  });

  parallel(NumBlocks(batch), row_cost, [&](int64_t begin, int64_t end) {
    const Multiplying multiplying(gemm_);
    alignas(64) float sums[kStepValues];
    std::vector<Bf16> row(MaxWidth());
    std::vector<float> rows(kBlock * NumBlocks(out.width) * kBlock);
    const int64_t out_stride = NumBlocks(out.width) * kBlock;
    for (int64_t b = begin; b < end; ++b) {
      Bf16* panels = saved + b * panels_.back();
      const int num_rows = InBlock(batch, b);
      PackLeft(inputs, b * kBlock, num_rows, NumBlocks(layers_[0].num_inputs), row.data(), panels);
      for (int l = 0; l < num_layers(); ++l) {
        const MlpLayer& layer = layers_[l];
        const int64_t steps = NumBlocks(layer.num_inputs);
        const bool last = l + 1 == num_layers();
        const bool relu = !last || final_relu_;
        for (int64_t n = 0; n < blocks[l]; ++n) {
          float bias[kBlock] = {};
          std::memcpy(bias, layer.bias + n * kBlock, sizeof(float) * InBlock(layer.num_outputs, n));
          gemm_.multiply(panels + panels_[l], kernels[l] + n * steps * kStepValues,
                         {layer.num_inputs, kBlock, InBlock(layer.num_outputs, n)}, sums);
          AddBias(bias, relu, sums);
          if (relu) gemm_.round(sums, panels + panels_[l + 1] + n * kStepValues);
          for (int r = 0; last && r < num_rows; ++r) {
            std::memcpy(rows.data() + r * out_stride + n * kBlock, sums + r * kBlock,
                        sizeof(float) * kBlock);
          }
        }
      }
      Unpack(rows.data(), out_stride, b * kBlock, num_rows, {out});
    }
  });
}

void Mlp::Backward(const MlpMatrix& upstream, const Bf16* saved, int64_t batch,
                   const ParallelFor& parallel, Bf16* scratch,
                   const std::vector<MlpMatrix>& input_gradients,
                   const std::vector<MlpLayerGradient>& gradients) const {
  const int64_t row_blocks = NumBlocks(batch);
  // Of each layer: right panels of the transposed kernel, for each block of inputs the outputs'
  // steps; left panels of the transposed inputs and right panels of the outputs' gradients, whose
  // steps are blocks of rows; for each block of rows the sums of the outputs' gradients.
  std::vector<Bf16*> kernels, inputs, outputs;
  std::vector<float*> sums_of;
  std::vector<int64_t> blocks;
  int64_t row_cost = 0;
  for (const MlpLayer& l : layers_) {
    const int64_t in = NumBlocks(l.num_inputs), out = NumBlocks(l.num_outputs);
    blocks.push_back(in);
    kernels.push_back(scratch);
    scratch += in * out * kStepValues;
    inputs.push_back(scratch);
    scratch += in * row_blocks * kStepValues;
    outputs.push_back(scratch);
    scratch += out * row_blocks * kStepValues;
    sums_of.push_back(reinterpret_cast<float*>(scratch));
    scratch += row_blocks * out * kBlock * 2;
    row_cost += in * out * 100 + (in + out) * 300;
  }
  ForEachBlock(blocks, 20000, parallel, [&](int l, int64_t begin, int64_t end) {
    const MlpLayer& layer = layers_[l];
    const int64_t steps = NumBlocks(layer.num_outputs);
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t n = 0; n < steps; ++n) {
        PackRightTransposed(layer.kernel + k * kBlock * layer.num_outputs + n * kBlock,
                            layer.num_outputs, layer.num_outputs - n * kBlock,
                            layer.num_inputs - k * kBlock,
                            kernels[l] + (k * steps + n) * kStepValues);
      }
    }
  });

  parallel(row_blocks, row_cost, [&](int64_t begin, int64_t end) {
    const Multiplying multiplying(gemm_);
    alignas(64) float sums[kStepValues];
    const int64_t width = MaxWidth();
    std::vector<Bf16> row(width);
    std::vector<Bf16> buffers(2 * kBlock * width + 32);
    Bf16* gradient = AlignedBf16(buffers.data());
    Bf16* next = gradient + kBlock * width;
    const int64_t stride = blocks[0] * kBlock;
    std::vector<float> rows(kBlock * stride);
    for (int64_t b = begin; b < end; ++b) {
      const Bf16* panels = saved + b * panels_.back();
      const int num_rows = InBlock(batch, b);
      const int64_t last_blocks = NumBlocks(layers_.back().num_outputs);
      PackLeft({upstream}, b * kBlock, num_rows, last_blocks, row.data(), gradient);
      for (int64_t n = 0; final_relu_ && n < last_blocks; ++n) {
        Mask(panels + panels_[num_layers()] + n * kStepValues, gradient + n * kStepValues);
      }
      for (int l = num_layers() - 1; l >= 0; --l) {
        const int64_t steps = NumBlocks(layers_[l].num_outputs);
        float* bias_sums = sums_of[l] + b * steps * kBlock;
        for (int64_t n = 0; n < steps; ++n) {
          gemm_.left_to_right(gradient + n * kStepValues,
                              outputs[l] + (n * row_blocks + b) * kStepValues,
                              bias_sums + n * kBlock);
        }
        for (int64_t k = 0; k < blocks[l]; ++k) {
          const Bf16* input = panels + panels_[l] + k * kStepValues;
          gemm_.turn(input, inputs[l] + (k * row_blocks + b) * kStepValues);
          if (l == 0 && input_gradients.empty()) continue;
          gemm_.multiply(gradient, kernels[l] + k * steps * kStepValues,
                         {layers_[l].num_outputs, kBlock, InBlock(layers_[l].num_inputs, k)}, sums);
          if (l > 0) {
            gemm_.round(sums, next + k * kStepValues);
            Mask(input, next + k * kStepValues);
          } else {
            for (int r = 0; r < num_rows; ++r) {
              std::memcpy(rows.data() + r * stride + k * kBlock, sums + r * kBlock,
                          sizeof(float) * kBlock);
            }
          }
        }
        std::swap(gradient, next);
      }
      if (!input_gradients.empty()) {
        Unpack(rows.data(), stride, b * kBlock, num_rows, input_gradients);
      }
    }
  });

  // A layer's first block sums its bias too: a layer without inputs has that one alone.
  std::vector<int64_t> weight_blocks = blocks;
  for (int64_t& n : weight_blocks) n = std::max<int64_t>(1, n);
  ForEachBlock(weight_blocks, row_blocks * 1500, parallel, [&](int l, int64_t begin, int64_t end) {
    end = std::min(end, blocks[l]);
    const Multiplying multiplying(gemm_);
    alignas(64) float sums[kStepValues];
    const MlpLayer& layer = layers_[l];
    const int64_t out_blocks = NumBlocks(layer.num_outputs);
    float* to = gradients[l].kernel;
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
          gemm_.multiply_turned(inputs[l] + (k * row_blocks + chunk) * kStepValues,
                                outputs[l] + (n * row_blocks + chunk) * kStepValues,
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
    if (begin > 0) return;
    std::fill_n(gradients[l].bias, layer.num_outputs, 0.0f);
    for (int64_t b = 0; b < row_blocks; ++b) {
      Add(sums_of[l] + b * out_blocks * kBlock, layer.num_outputs, gradients[l].bias);
    }
  });
}

}  // namespace embedps
