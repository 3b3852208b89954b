// The dot interaction of DLRM (Naumov et al. 2019): the dot products of every pair of an example's
// feature vectors.
#ifndef EMBEDPS_KERNELS_DENSE_INTERACTION_H_
#define EMBEDPS_KERNELS_DENSE_INTERACTION_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/dense/block_gemm.h"

namespace embedps {

// Counts the pairs of num_features vectors.
inline int64_t NumPairs(int64_t num_features) { return num_features * (num_features - 1) / 2; }

// A row-major matrix of float32 or bfloat16.
struct InteractionMatrix {
  void* data = nullptr;
  bool is_bf16 = false;
};

// Computes the examples in [begin, end): out [batch, pairs] gets vector i . vector j for each j <
// i, in the order (1,0), (2,0), (2,1), (3,0), ... features[i] is [batch, dim]. Products are
// float32.
void DotInteraction(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                    int64_t end, const InteractionMatrix& out);

// Computes the gradient: gradients[i] [batch, dim] = sum over j of upstream(i, j) vector j.
void DotInteractionGradient(const std::vector<InteractionMatrix>& features,
                            const InteractionMatrix& upstream, int dim, int64_t begin, int64_t end,
                            const std::vector<InteractionMatrix>& gradients);

// These two use products of blocks, for at most 32 features. They round vectors and upstream to
// bfloat16; sums are float32.
void DotInteractionByBlocks(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                            int64_t end, const BlockGemm& gemm, const InteractionMatrix& out);

void DotInteractionGradientByBlocks(const std::vector<InteractionMatrix>& features,
                                    const InteractionMatrix& upstream, int dim, int64_t begin,
                                    int64_t end, const BlockGemm& gemm,
                                    const std::vector<InteractionMatrix>& gradients);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_INTERACTION_H_
