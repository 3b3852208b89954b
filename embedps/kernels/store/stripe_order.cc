#include "embedps/kernels/store/stripe_order.h"

#include "embedps/kernels/runtime/hash.h"

namespace embedps {

StripeOrder::StripeOrder(const IdsByTable& batch, const std::vector<uint64_t>& table_salts,
                         const ParallelFor& parallel)
    : num_ids_(batch.num_ids), entries_(new Entry[batch.num_ids + 1]) {
  entries_[num_ids_].bin = -1;
  const int64_t num_tables = static_cast<int64_t>(table_salts.size());
  parallel(num_tables, 20 * batch.num_ids / num_tables, [&](int64_t begin, int64_t end) {
    std::vector<uint64_t> hashes;
    std::vector<uint8_t> stripes;
    static_assert(kStripes <= 256);
    for (int t = static_cast<int>(begin); t < end; ++t) {
      // The ids are ordered by table. A counting sort by stripe orders them within each table.
      const int32_t first = batch.splits[t], last = batch.splits[t + 1];
      hashes.resize(last - first);
      stripes.resize(last - first);
      int32_t starts[kStripes + 1] = {};
      for (int32_t i = first; i < last; ++i) {
        const uint64_t hash = RowHash(table_salts[t], batch.ids[i]);
        hashes[i - first] = hash;
        const int k = StripeOf(hash);
        stripes[i - first] = static_cast<uint8_t>(k);
        ++starts[k + 1];
      }
      for (int k = 0; k < kStripes; ++k) starts[k + 1] += starts[k];
      for (int32_t i = first; i < last; ++i) {
        const uint64_t hash = hashes[i - first];
        const int k = stripes[i - first];
        entries_[first + starts[k]++] = {PlaceHash(hash), hash, i, t * kStripes + k};
      }
    }
  });
}

StripeOrder::StripeOrder(std::vector<Entry> entries)
    : num_ids_(static_cast<int64_t>(entries.size())), entries_(new Entry[entries.size() + 1]) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.bin != b.bin ? a.bin < b.bin : a.at < b.at;
  });
  std::copy(entries.begin(), entries.end(), entries_.get());
  entries_[num_ids_].bin = -1;
}

}  // namespace embedps
