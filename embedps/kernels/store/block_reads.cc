#include "embedps/kernels/store/block_reads.h"

#include <cstdint>

#include "embedps/kernels/store/row_store.h"

namespace embedps {

// The ids of a request have a stripe each, nearly: 2,600 ids of 26 tables are in 1,300 stripes. If
// these were visited one by one, each id would wait for its stripe, the directory, the index and
// the row, one after another. So all ids of a block take each of these steps together.
void RowStore::ReadBlock(const IdsByTable& batch, const StripeOrder::Entry* first,
                         const StripeOrder::Entry* last, float* embeddings) const {
  for (const auto* e = first; e < last; ++e) PrefetchBin(e->bin);
  const StripeLocks locks(stripes_, first, last);
  for (const auto* e = first; e < last; ++e) stripes_[e->bin]->PrefetchSegment(e->hash);
  for (const auto* e = first; e < last; ++e) stripes_[e->bin]->PrefetchEntry(e->hash);
  uint32_t probably[StripeOrder::kBlock];
  for (const auto* e = first; e < last; ++e) {
    probably[e - first] = stripes_[e->bin]->PrefetchChunk(e->hash);
  }
  for (const auto* e = first; e < last; ++e) {
    stripes_[e->bin]->PrefetchRow</*kWrites=*/false>(probably[e - first]);
  }
  for (const auto* e = first; e < last; ++e) {
    const Stripe& stripe = *stripes_[e->bin];
    const int64_t id = batch.ids[e->at];
    float* const out = embeddings + int64_t{e->at} * config_.dim;
    const uint32_t number = stripe.Find(e->hash, id, probably[e - first]);
    if (number == kNone) {
      ReadAbsent(e->bin / kStripes, id, out);
    } else {
      layout_.ReadEmbedding(*stripe.Row(number), out);
    }
  }
}

}  // namespace embedps
