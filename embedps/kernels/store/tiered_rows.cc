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
namespace {

constexpr uint32_t kSliceRows = 256;  // rows to copy while holding a stripe's lock
// Of the rows of a delta that are on disk: how many are collected, at least and as a share of the
// rows on disk, and how many are read at once.
constexpr size_t kLeastPostponed = 1 << 16, kPostponedShare = 32, kReadRows = 4096;

}  // namespace

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
                       const ParallelFor& parallel, LaterRows* later) {
  tier_->Pace();
  if (!tier_->has_spilled()) return tier_->failure();
  const auto note = [&](const StripeOrder& entries, LaterRows* rows) {
    entries.ForEachBin(
        parallel, 60,
        [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
          Stripe& stripe = *stripes_[bin];
          const MutexLock lock(&stripe.mutex);
          RowFinder finder(stripe, arena_.get(), first, last);
          for (const auto* e = first; e < last; ++e) {
            const uint32_t number = finder.Next(e, batch.ids[e->at]);
            if (number != kNone) (void)rows->Takes(bin, number, *e);
          }
        });
  };
  note(order, later);
  if (!later->others.empty()) {
    later->WaitForOthers();
    LaterRows rest(layout_, stripes_, tier_.get(), nullptr);
    note(StripeOrder(std::move(later->others)), &rest);
    later->fetched.Append(rest.fetched);
  }
  return tier_->Fetch(&later->fetched);
}

Status RowStore::VisitRows(const IdsByTable& batch, const StripeOrder& order,
                           const ParallelFor& parallel, int64_t cost, const BinVisit& visit) {
  const RowTier::Fetched none{};
  const auto all = [&](const StripeOrder& entries, const RowTier::Fetched& fetched,
                       LaterRows* later) {
    entries.ForEachBin(
        parallel, cost,
        [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
          visit(bin, first, last, fetched, later);
        });
  };
  if (tier_ == nullptr) {
    all(order, none, nullptr);
    return Status::Ok();
  }
  LaterRows later(layout_, stripes_, tier_.get(), &reads_);
  const bool displaces = std::any_of(evictions_.begin(), evictions_.end(),
                                     [](const auto& each) { return each->displaces(); });
  if (displaces) {
    // A new row may displace one that is visited later: all must be visited in their order.
    EMBEDPS_RETURN_IF_ERROR(Fetch(batch, order, parallel, &later));
    all(order, later.fetched, nullptr);
    return failure();
  }
  tier_->Pace();
  EMBEDPS_RETURN_IF_ERROR(failure());
  if (!tier_->has_spilled()) {
    all(order, none, nullptr);  // what spills meanwhile is read alone
    return failure();
  }
  const auto read = [&](LaterRows* rows) {
    if (rows->entries.empty()) return failure();
    EMBEDPS_RETURN_IF_ERROR(tier_->Fetch(&rows->fetched));
    all(StripeOrder(std::move(rows->entries)), rows->fetched, nullptr);
    return failure();
  };
  all(order, none, &later);
  EMBEDPS_RETURN_IF_ERROR(read(&later));
  if (later.others.empty()) return Status::Ok();
  // What others read ahead, or look up, is in memory then, but for a few rows.
  later.WaitForOthers();
  LaterRows rest(layout_, stripes_, tier_.get(), nullptr);
  all(StripeOrder(std::move(later.others)), none, &rest);
  return read(&rest);
}

void RowStore::ReadAhead(const IdsByTable& batch) {
  if (tier_ != nullptr && tier_->has_spilled()) ahead_->Add(batch, num_tables());
}

void RowStore::WaitForAhead() {
  if (ahead_ != nullptr) ahead_->Wait();
}

void RowStore::BringIn(const IdsByTable& batch) {
  const StripeOrder order(batch, salts_, SerialFor);
  LaterRows rows(layout_, stripes_, tier_.get(), &reads_);
  const auto visit_all = [&](const std::function<void(int bin, uint32_t number,
                                                      const StripeOrder::Entry& entry)>& visit) {
    order.ForEachBin(SerialFor, 100,
                     [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
                       Stripe& stripe = *stripes_[bin];
                       const MutexLock lock(&stripe.mutex);
                       RowFinder finder(stripe, nullptr, first, last);
                       for (const auto* e = first; e < last; ++e) {
                         const uint32_t number = finder.Next(e, batch.ids[e->at]);
                         if (number != kNone) visit(bin, number, *e);
                       }
                     });
  };
  tier_->Pace();
  int last_bin = -1;
  int64_t more = 0;
  visit_all([&](int bin, uint32_t number, const StripeOrder::Entry& entry) {
    if (bin != last_bin) more = 0;
    last_bin = bin;
    if (tier_->TakesAhead(bin, more) && rows.Takes(bin, number, entry)) ++more;
  });
  // A failure fails the tier: who looks the rows up is told.
  if (rows.entries.empty() || !tier_->Fetch(&rows.fetched).ok()) return;
  visit_all([&](int bin, uint32_t number, const StripeOrder::Entry& entry) {
    tier_->BringInAhead(bin, number, rows.fetched, entry.at);
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

RowStore::RowsLeft RowStore::NoneLeft() const {
  return RowsLeft(tier_ != nullptr && tier_->has_many_on_disk() ? stripes_.size() : 0);
}

size_t RowStore::MostPostponed() const {
  if (tier_ == nullptr) return SIZE_MAX;
  return std::max(kLeastPostponed, static_cast<size_t>(tier_->num_on_disk()) / kPostponedShare);
}

void RowStore::CopyPostponed(PostponedRows* rows, OutgoingRows* outgoing) {
  std::sort(rows->begin(), rows->end(),
            [](const RowOnDisk& a, const RowOnDisk& b) { return a.location < b.location; });
  RowTier::Fetched fetched;
  RowTier::Image image(tier_.get());
  for (size_t first = 0; first < rows->size(); first += kReadRows) {
    const size_t last = std::min(rows->size(), first + kReadRows);
    fetched.clear();
    for (size_t i = first; i < last; ++i) {
      const RowOnDisk& each = (*rows)[i];
      const Stripe& stripe = *stripes_[each.bin];
      const MutexLock lock(&stripe.mutex);
      if (stripe.Row(each.number)->live) {
        tier_->Want(each.bin, each.number, static_cast<int64_t>(i), &fetched);
      }
    }
    (void)tier_->Fetch(&fetched);  // a failure fails the tier
    outgoing->Reserve(static_cast<uint32_t>(last - first));
    for (size_t i = first; i < last; ++i) {
      const RowOnDisk& each = (*rows)[i];
      Stripe& stripe = *stripes_[each.bin];
      const MutexLock lock(&stripe.mutex);
      RowHeader* const row = stripe.Row(each.number);
      if (!row->live) continue;
      const RowHeader* const whole =
          tier_->View(each.bin, each.number, fetched, static_cast<int64_t>(i), &image);
      if (whole != nullptr) outgoing->AppendRow(each.bin / kStripes, *whole);
      if (!row->saved) row->saved = 1;
      row->listed = 0;
    }
  }
  rows->clear();
}

void RowStore::CopyLeft(bool unlists, const std::function<bool()>& goes_on, RowsLeft* left,
                        OutgoingRows* outgoing) {
  RowTier::Image image(tier_.get());
  // Takes a row, whose stripe's lock is held.
  const auto take = [&](int bin, uint32_t number, const RowHeader* whole)
                        NO_THREAD_SAFETY_ANALYSIS {
                          RowHeader* const row = stripes_[bin]->Row(number);
                          (*left)[bin][number] = false;
                          if (whole != nullptr) outgoing->AppendRow(bin / kStripes, *whole);
                          if (!row->saved) row->saved = 1;
                          if (unlists && row->listed) row->listed = 0;
                        };
  const auto begins = [&](int64_t rows) {
    if (!goes_on()) return false;
    outgoing->Reserve(static_cast<uint32_t>(rows));
    return true;
  };
  tier_->Scan(begins, [&](int bin, uint32_t number, const char* floats) NO_THREAD_SAFETY_ANALYSIS {
    const std::vector<bool>& of_stripe = (*left)[bin];
    if (number >= of_stripe.size() || !of_stripe[number]) return false;
    take(bin, number, tier_->Copy(*stripes_[bin]->Row(number), floats, &image));
    return true;
  });
  // What came into memory, moved on disk, or was not there yet.
  std::vector<uint32_t> numbers;
  RowTier::Fetched fetched;
  for (size_t bin = 0; bin < left->size(); ++bin) {
    std::vector<bool>& of_stripe = (*left)[bin];
    auto next = std::find(of_stripe.begin(), of_stripe.end(), true);
    while (next != of_stripe.end()) {
      numbers.clear();
      for (; next != of_stripe.end() && numbers.size() < kSliceRows;
           next = std::find(next + 1, of_stripe.end(), true)) {
        numbers.push_back(static_cast<uint32_t>(next - of_stripe.begin()));
      }
      if (!begins(static_cast<int64_t>(numbers.size()))) return;
      FetchRows(static_cast<int>(bin), numbers, &fetched);
      const Stripe& stripe = *stripes_[bin];
      const MutexLock lock(&stripe.mutex);
      for (const uint32_t number : numbers) {
        if (!stripe.Row(number)->live) continue;
        take(static_cast<int>(bin), number,
             ViewRow(static_cast<int>(bin), number, fetched, &image));
      }
    }
  }
}

}  // namespace embedps
