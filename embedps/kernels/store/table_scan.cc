#include "embedps/kernels/store/table_scan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "embedps/kernels/store/row_store.h"

namespace embedps {
namespace {

constexpr uint32_t kSliceRows = 256;  // rows to visit while holding a stripe's lock
constexpr double kNeverEnough = std::numeric_limits<double>::infinity();

}  // namespace

int LogBins::BinOf(double units) {
  if (!(units < std::ldexp(kPerDoubling, kDoublings))) return kNumBins - 1;
  const auto multiple = static_cast<uint64_t>(units);
  if (multiple < kPerDoubling) return static_cast<int>(multiple);
  constexpr int kBits = __builtin_ctz(kPerDoubling);
  const int doubling = 63 - __builtin_clzll(multiple) - kBits;
  const int within = static_cast<int>(multiple >> doubling) - kPerDoubling;
  return kPerDoubling * (doubling + 1) + within;
}

double LogBins::Value(int bin) const {
  if (bin < kPerDoubling) return unit_ * bin;
  const double width = std::ldexp(1.0, bin / kPerDoubling - 1);
  return unit_ * (width * (kPerDoubling + bin % kPerDoubling) + (width - 1) / 2);
}

void HottestIds::Push(const TableScan::HotId& id) {
  heap_.push_back(id);
  std::push_heap(heap_.begin(), heap_.end(), IsHotter);
}

void HottestIds::Replace(const TableScan::HotId& id) {
  std::pop_heap(heap_.begin(), heap_.end(), IsHotter);
  heap_.back() = id;
  std::push_heap(heap_.begin(), heap_.end(), IsHotter);
}

std::vector<TableScan::HotId> HottestIds::Take() {
  std::sort_heap(heap_.begin(), heap_.end(), IsHotter);
  return std::move(heap_);
}

void RowStore::FetchSome(int bin, uint32_t first, uint32_t stride,
                         RowTier::Fetched* fetched) const {
  std::vector<uint32_t> numbers;
  {
    const Stripe& stripe = *stripes_[bin];
    const MutexLock lock(&stripe.mutex);
    for (uint32_t number = first; number < std::min(first + kSliceRows, stripe.used()); ++number) {
      if (number % stride == 0) numbers.push_back(number);
    }
  }
  FetchRows(bin, numbers, fetched);
}

TableScan RowStore::Scan(int table, const std::function<void()>& pause) const {
  TableScan scan;
  HottestIds hottest;
  RowTier::Fetched fetched;
  RowTier::Image image(tier_.get());
  const bool on_disk = tier_ != nullptr && tier_->has_spilled();
  const uint32_t stride =
      on_disk ? TableScan::NormStrideOf(table_rows_[table]) : TableScan::kNormStride;
  for (int i = 0; i < kStripes; ++i) {
    const int bin = table * kStripes + i;
    const Stripe& stripe = *stripes_[bin];
    for (uint32_t first = 0;; first += kSliceRows) {
      if (tier_) FetchSome(bin, first, stride, &fetched);
      {
        const MutexLock lock(&stripe.mutex);
        if (first >= stripe.used()) break;
        const uint32_t last = std::min(first + kSliceRows, stripe.used());
        for (uint32_t number = first; number < last; ++number) {
          const RowHeader& row = *stripe.Row(number);
          if (!row.live) continue;
          ++scan.rows;
          scan.updates += row.frequency;
          scan.frequencies.Add(row.frequency);
          hottest.Add(row.id, row.frequency);
          if (number % stride == 0) {
            const RowHeader* const whole = ViewRow(bin, number, fetched, &image);
            if (whole == nullptr) continue;
            scan.norms.Add(std::sqrt(layout_.SquaredNorm(*whole, kNeverEnough)));
          }
        }
      }
      pause();
    }
  }
  scan.hottest = hottest.Take();
  return scan;
}

std::vector<int64_t> RowStore::Ids(int table) const {
  std::vector<int64_t> ids;
  for (int i = 0; i < kStripes; ++i) {
    const Stripe& stripe = *stripes_[table * kStripes + i];
    const MutexLock lock(&stripe.mutex);
    for (uint32_t number = 0; number < stripe.used(); ++number) {
      const RowHeader& row = *stripe.Row(number);
      if (row.live) ids.push_back(row.id);
    }
  }
  return ids;
}

}  // namespace embedps
