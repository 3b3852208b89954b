#include "embedps/kernels/store/row_updater.h"

#include <algorithm>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store.h"

namespace embedps {
namespace {

// Gives the floats to work on: those of the row if it stores float32, or else a copy.
float* Opened(FloatDtype dtype, char* stored, std::vector<float>* copy) {
  if (dtype == FloatDtype::kFloat32) return reinterpret_cast<float*>(stored);
  Widen(dtype, stored, static_cast<int64_t>(copy->size()), copy->data());
  return copy->data();
}

void Close(FloatDtype dtype, const std::vector<float>& copy, uint64_t key, uint32_t first,
           char* stored) {
  if (dtype == FloatDtype::kFloat32) return;
  RoundAtRandom(dtype, copy.data(), static_cast<int64_t>(copy.size()), key, first, stored);
}

}  // namespace

uint64_t RoundingKey(int64_t seed, uint64_t row_hash, uint32_t step) {
  return Mix64((Mix64(static_cast<uint64_t>(seed)) ^ row_hash) + step * kSplitMixIncrement);
}

RowUpdater::RowUpdater(const RowLayout& layout, const OptimizerConfig& optimizer, int64_t seed,
                       uint64_t table_salt, float learning_rate, uint32_t step)
    : layout_(layout),
      optimizer_(optimizer),
      seed_(seed),
      table_salt_(table_salt),
      learning_rate_(learning_rate),
      step_(step),
      is_float32_(layout.is_float32()),
      embedding_(layout.row_dtype == FloatDtype::kFloat32 ? 0 : layout.dim),
      optimizer_slots_(layout.slot_dtype == FloatDtype::kFloat32 ? 0 : layout.slot_floats) {}

void RowUpdater::ApplyRounded(const float* gradient, uint32_t passed, RowHeader* row) {
  char* stored_embedding = layout_.Embedding(row);
  char* stored_slots = layout_.OptimizerSlots(row);
  float* embedding = Opened(layout_.row_dtype, stored_embedding, &embedding_);
  float* slots = Opened(layout_.slot_dtype, stored_slots, &optimizer_slots_);
  ApplyUpdate(optimizer_, layout_.dim, learning_rate_, row->frequency, passed, gradient, embedding,
              slots);
  const uint64_t key = RoundingKey(seed_, RowHash(table_salt_, row->id), step_);
  Close(layout_.row_dtype, embedding_, key, 0, stored_embedding);
  Close(layout_.slot_dtype, optimizer_slots_, key, (layout_.dim + 1) / 2, stored_slots);
}

void RowStore::UpdateRates(const IdsByTable& batch, const ParallelFor& parallel, float* rates) {
  const std::shared_ptr<const StagedRows> shown = Shown();
  const StripeOrder order(batch, salts_, parallel);
  int64_t known = steps_.load(std::memory_order_relaxed);
  if (shown != nullptr) known = std::max(known, shown->steps());
  const float steps = static_cast<float>(known);
  order.ForEachBin(
      parallel, 100, [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
        Stripe& stripe = *stripes_[bin];
        const MutexLock lock(&stripe.mutex);
        PrefetchBin(last->bin);
        RowFinder finder(stripe, arena_.get(), first, last);
        for (const auto* e = first; e < last; ++e) {
          const int64_t id = batch.ids[e->at];
          const uint32_t number = finder.Next(e, id);
          float updates = number == kNone ? 0.0f : stripe.Row(number)->frequency;
          const int64_t at = shown == nullptr ? -1 : shown->Find(bin / kStripes, e->hash, id);
          if (at >= 0) updates = shown->UpdatesOf(at);
          rates[e->at] = (std::min(updates, steps) + 1) / (steps + 2);
        }
      });
}

}  // namespace embedps
