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
  int64_t taken = 0;
  for (int64_t i = 0; i < columns.num_rows; ++i) {
    const int t = tables[columns.table[i]];
    if (t < 0) continue;
    const uint64_t hash = RowHash(table_salts_[t], columns.id[i]);
    if (ShardOf(hash, num_shards_) != shard_) continue;
    ++taken;
    const int64_t n = columns_.num_rows;
    if (2 * (n + 1) > static_cast<int64_t>(places_.size())) MakePlaces();
    int64_t& place = places_[PlaceOf(t, PlaceHash(hash), columns.id[i])];
    if (place < 0) {
      place = n;
      Append(static_cast<int16_t>(t), hash, columns.id[i]);
    }
    Set(place, columns, i);
  }
  return taken;
}

void StagedRows::Append(int16_t table, uint64_t hash, int64_t id) {
  hashes_.push_back(hash);
  columns_.table.push_back(table);
  columns_.id.push_back(id);
  const size_t n = ++columns_.num_rows;
  columns_.embedding.resize(n * dim_);
  columns_.last_step.resize(n);
  columns_.frequency.resize(n);
  columns_.removed.resize(n);
}

void StagedRows::Set(int64_t i, const RowColumns& from, int64_t at) {
  std::copy_n(&from.embedding[at * dim_], dim_, &columns_.embedding[i * dim_]);
  columns_.last_step[i] = from.last_step[at];
  columns_.frequency[i] = from.frequency[at];
  columns_.removed[i] = from.removed[at];
}

float StagedRows::UpdatesOf(int64_t at) const {
  return columns_.removed[at] ? 0.0f : std::min(columns_.frequency[at], kMaxFrequency);
}

size_t StagedRows::PlaceOf(int table, uint64_t hash, int64_t id) const {
  const size_t mask = places_.size() - 1;
  size_t at = hash & mask;
  while (places_[at] >= 0 &&
         (columns_.id[places_[at]] != id || columns_.table[places_[at]] != table)) {
    at = (at + 1) & mask;
  }
  return at;
}

void StagedRows::MakePlaces() {
  places_.assign(std::max<size_t>(64, 2 * places_.size()), -1);
  for (int64_t i = 0; i < columns_.num_rows; ++i) {
    places_[PlaceOf(columns_.table[i], PlaceHash(hashes_[i]), columns_.id[i])] = i;
  }
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
  std::vector<int64_t>& moved = next;  // where each record is then
  moved.resize(n);
  for (int64_t to = 0; to < n; ++to) {
    order_.entries[to] = {PlaceHash(hashes_[from[to]]), to};
    moved[from[to]] = to;
    if (!columns_.removed[to]) steps_ = std::max(steps_, int64_t{columns_.last_step[to]} + 1);
  }
  for (int64_t& place : places_) {
    if (place >= 0) place = moved[place];
  }
  std::vector<uint64_t>().swap(hashes_);
  if (std::is_sorted(from.begin(), from.end())) return;  // as one shard's file is written
  // Each column is read from front to back when it is applied.
  const auto permute = [&from, n](auto* column, int64_t width) {
    std::remove_reference_t<decltype(*column)> ordered(n * width);
    for (int64_t to = 0; to < n; ++to) {
      std::copy_n(&(*column)[from[to] * width], width, &ordered[to * width]);
    }
    column->swap(ordered);
  };
  permute(&columns_.table, 1);
  permute(&columns_.id, 1);
  permute(&columns_.embedding, dim_);
  permute(&columns_.last_step, 1);
  permute(&columns_.frequency, 1);
  permute(&columns_.removed, 1);
}

std::pair<int64_t, int64_t> StagedRows::RangeOf(int table) const {
  return {order_.starts[table * kStripes], order_.starts[(table + 1) * kStripes]};
}

}  // namespace embedps
