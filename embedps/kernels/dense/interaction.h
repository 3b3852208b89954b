// The dot interaction of DLRM (Naumov et al. 2019): the dot products of every pair of an example's
// feature vectors.
#ifndef EMBEDPS_KERNELS_DENSE_INTERACTION_H_
#define EMBEDPS_KERNELS_DENSE_INTERACTION_H_

#include <cstdint>
#include <vector>

#include "embedps/kernels/dense/block_gemm.h"

namespace embedps {

// Number of pairs of num_features vectors.
inline int64_t NumPairs(int64_t num_features) { return num_features * (num_features - 1) / 2; }

// A matrix of float32 or bfloat16, row by row.
struct InteractionMatrix {
  void* data = nullptr;
  bool is_bf16 = false;
};

// For the examples in [begin, end): out [batch, pairs] holds vector i . vector j for each j < i, in
// the order (1,0), (2,0), (2,1), (3,0), ... features[i] is [batch, dim]. Products are of float32.
void DotInteraction(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                    int64_t end, const InteractionMatrix& out);

// Its gradient: gradients[i] [batch, dim] = sum over j of upstream(i, j) vector j.
void DotInteractionGradient(const std::vector<InteractionMatrix>& features,
                            const InteractionMatrix& upstream, int dim, int64_t begin, int64_t end,
                            const std::vector<InteractionMatrix>& gradients);

// The same by products of blocks, for at most 32 features: vectors and upstream are rounded to
// bfloat16, sums are float32.
void DotInteractionByBlocks(const std::vector<InteractionMatrix>& features, int dim, int64_t begin,
                            int64_t end, const BlockGemm& gemm, const InteractionMatrix& out);

void DotInteractionGradientByBlocks(const std::vector<InteractionMatrix>& features,
                                    const InteractionMatrix& upstream, int dim, int64_t begin,
                                    int64_t end, const BlockGemm& gemm,
                                    const std::vector<InteractionMatrix>& gradients);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_DENSE_INTERACTION_H_
