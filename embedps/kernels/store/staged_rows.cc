#include "embedps/kernels/store/staged_rows.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/stripe.h"

namespace embedps {

StagedRows::StagedRows(std::vector<uint64_t> table_salts, int dim, int shard, int num_shards)
    : table_salts_(std::move(table_salts)), dim_(dim), shard_(shard), num_shards_(num_shards) {}

int64_t StagedRows::Add(const RowColumns& columns, const std::vector<int>& tables) {
  const int64_t before = columns_.num_rows;
  for (int64_t i = 0; i < columns.num_rows; ++i) {
    const int t = tables[columns.table[i]];
    if (t < 0) continue;
    const uint64_t hash = RowHash(table_salts_[t], columns.id[i]);
    if (ShardOf(hash, num_shards_) != shard_) continue;
    hashes_.push_back(hash);
    columns_.table.push_back(static_cast<int16_t>(t));
    columns_.id.push_back(columns.id[i]);
    const float* row = &columns.embedding[i * dim_];
    columns_.embedding.insert(columns_.embedding.end(), row, row + dim_);
    columns_.last_step.push_back(columns.last_step[i]);
    columns_.frequency.push_back(columns.frequency[i]);
    columns_.removed.push_back(columns.removed[i]);
    ++columns_.num_rows;
  }
  return columns_.num_rows - before;
}

void StagedRows::Finish() {
  const int64_t n = columns_.num_rows;
  const auto bin_of = [this](int64_t i) {
    return columns_.table[i] * kStripes + StripeOf(hashes_[i]);
  };
  std::vector<int64_t>& starts = order_.starts;
  starts.assign(table_salts_.size() * kStripes + 1, 0);
  for (int64_t i = 0; i < n; ++i) ++starts[bin_of(i) + 1];
  for (size_t bin = 1; bin < starts.size(); ++bin) starts[bin] += starts[bin - 1];
  std::vector<int64_t> next(starts.begin(), starts.end() - 1), from(n);
  for (int64_t i = 0; i < n; ++i) from[next[bin_of(i)]++] = i;
  order_.entries.resize(n);
  for (int64_t to = 0; to < n; ++to) order_.entries[to] = {hashes_[from[to]], to};
  std::vector<uint64_t>().swap(hashes_);
  // Each column is read from front to back when it is applied.
  const auto permute = [&from, n](auto* column, int64_t width) {
    std::remove_reference_t<decltype(*column)> ordered(n * width);
    for (int64_t to = 0; to < n; ++to) {
      std::copy_n(&(*column)[from[to] * width], width, &ordered[to * width]);
    }
    column->swap(ordered);
  };
  if (n == 0) return;
  permute(&columns_.table, 1);
  permute(&columns_.id, 1);
  permute(&columns_.embedding, dim_);
  permute(&columns_.last_step, 1);
  permute(&columns_.frequency, 1);
  permute(&columns_.removed, 1);
}

}  // namespace embedps
