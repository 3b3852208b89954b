// What a RowStore does whose coldest rows are on disk.
#include "embedps/kernels/store/tiered_rows.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/store/ahead_reader.h"
#include "embedps/kernels/store/row_store.h"
#include "embedps/kernels/store/row_tier.h"
#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

void RowStore::MakeTier() {
  RowTier::Owner owner;
  owner.group = config_.group;
  owner.layout = &layout_;
  owner.arena = arena_.get();
  owner.stripes = &stripes_;
  for (const TableConfig& table : config_.tables) {
    owner.min_norms.push_back(table.eviction.min_norm);
  }
  owner.steps = &steps_;
  owner.is_busy = [this] { return IsBusy(); };
  owner.evict = [this](int bin, uint32_t number) NO_THREAD_SAFETY_ANALYSIS {
    evictions_[bin / kStripes]->Displace(stripes_[bin].get(), number);  // who calls has the lock
  };
  tier_ = std::make_unique<RowTier>(config_.tier_memory, std::move(owner));
  ahead_ = std::make_unique<AheadReader>([this](const IdsByTable& batch) { BringIn(batch); });
}

void RowStore::AddEvicted(int t, const RowHeader& row, EvictionCause cause) const {
  if (!layout_.IsOnDisk(row)) return evicted_rows_->Add(t, row, cause, LastStep());
  const IdHashes hashes = HashesOf(salts_[t], row.id);
  RowTier::Image image(tier_.get());
  const RowHeader* const read = tier_->ViewOnDisk(t * kStripes + StripeOf(hashes.row), row, &image);
  if (read != nullptr) evicted_rows_->Add(t, *read, cause, LastStep());
}

Status RowStore::Fetch(const IdsByTable& batch, const StripeOrder& order,
                       const ParallelFor& parallel, RowTier::Fetched* fetched) {
  if (tier_ == nullptr) return Status::Ok();
  tier_->Pace();
  if (!tier_->has_spilled()) return tier_->failure();
  Mutex mutex;
  order.ForEachBin(parallel, 60,
                   [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
                     thread_local RowTier::Fetched wanted;
                     wanted.clear();
                     {
                       Stripe& stripe = *stripes_[bin];
                       const MutexLock lock(&stripe.mutex);
                       RowFinder finder(stripe, arena_.get(), first, last);
                       for (const auto* e = first; e < last; ++e) {
                         const uint32_t number = finder.Next(e, batch.ids[e->at]);
                         if (number != kNone) tier_->Want(bin, number, e->at, &wanted);
                       }
                     }
                     if (wanted.empty()) return;
                     const MutexLock lock(&mutex);
                     fetched->Append(wanted);
                   });
  return tier_->Fetch(fetched);
}

Status RowStore::VisitRows(const IdsByTable& batch, const StripeOrder& order,
                           const ParallelFor& parallel, int64_t cost, const BinVisit& visit) {
  RowTier::Fetched fetched;
  const auto all = [&](LaterRows* later) {
    order.ForEachBin(parallel, cost,
                     [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
                       visit(bin, first, last, fetched, later);
                     });
  };
  if (tier_ == nullptr) {
    all(nullptr);
    return Status::Ok();
  }
  const bool displaces = std::any_of(evictions_.begin(), evictions_.end(),
                                     [](const auto& each) { return each->displaces(); });
  if (displaces) {
    // A new row may displace one that is visited later: all must be visited in their order.
    EMBEDPS_RETURN_IF_ERROR(Fetch(batch, order, parallel, &fetched));
    all(nullptr);
    return failure();
  }
  tier_->Pace();
  EMBEDPS_RETURN_IF_ERROR(failure());
  if (!tier_->has_spilled()) {
    all(nullptr);  // what spills meanwhile is read alone
    return failure();
  }
  LaterRows later(layout_, stripes_, tier_.get());
  all(&later);
  if (later.entries.empty()) return failure();
  EMBEDPS_RETURN_IF_ERROR(tier_->Fetch(&later.fetched));
  StripeOrder(std::move(later.entries))
      .ForEachBin(parallel, cost,
                  [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
                    visit(bin, first, last, later.fetched, nullptr);
                  });
  return failure();
}

void RowStore::ReadAhead(const IdsByTable& batch) {
  if (tier_ != nullptr && tier_->has_spilled()) ahead_->Add(batch, num_tables());
}

void RowStore::WaitForAhead() {
  if (ahead_ != nullptr) ahead_->Wait();
}

void RowStore::BringIn(const IdsByTable& batch) {
  const StripeOrder order(batch, salts_, SerialFor);
  // A failure fails the tier: who looks the rows up is told.
  (void)VisitRows(batch, order, SerialFor, 100,
                  [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last,
                      const RowTier::Fetched& fetched, LaterRows* later) {
                    Stripe& stripe = *stripes_[bin];
                    const MutexLock lock(&stripe.mutex);
                    RowFinder finder(stripe, nullptr, first, last);
                    for (const auto* e = first; e < last; ++e) {
                      const uint32_t number = finder.Next(e, batch.ids[e->at]);
                      if (number == kNone) continue;
                      if (later != nullptr && later->Takes(bin, number, *e)) continue;
                      tier_->BringInAhead(bin, number, fetched, e->at);
                    }
                  });
}

void RowStore::FetchRows(int bin, const std::vector<uint32_t>& numbers,
                         RowTier::Fetched* fetched) const {
  fetched->clear();
  if (tier_ == nullptr || !tier_->has_spilled()) return;
  {
    const Stripe& stripe = *stripes_[bin];
    const MutexLock lock(&stripe.mutex);
    for (const uint32_t number : numbers) {
      if (stripe.Row(number)->live) tier_->Want(bin, number, number, fetched);
    }
  }
  (void)tier_->Fetch(fetched);
}

}  // namespace embedps
