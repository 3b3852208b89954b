// Records of files, ready for a store: decoded and ordered by stripe. RowStore::Apply applies them,
// and RowStore::LookupStaged reads as if it had.
#ifndef EMBEDPS_KERNELS_STORE_STAGED_ROWS_H_
#define EMBEDPS_KERNELS_STORE_STAGED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "embedps/kernels/files/row_file.h"

namespace embedps {

// The records of one shard by stripe, in file order within each. So each stripe is locked once, and
// stripes load in parallel.
struct RecordOrder {
  struct Entry {
    uint64_t hash;  // Stripe::HashOf
    int64_t at;     // index in the columns
  };
  std::vector<Entry> entries;
  std::vector<int64_t> starts;  // of each bin (table * kStripes + stripe), and the end
};

// Collects the records of one shard from batches of files, in order. Of an id it keeps the last
// one, so its memory is bounded by the distinct ids, however many files there are. Optimizer slots
// are left out. Not thread-safe.
class StagedRows {
 public:
  // `table_salts` has the TableSalt of each table of the store.
  StagedRows(std::vector<uint64_t> table_salts, int dim, int shard, int num_shards);

  // Takes a batch's records of this shard. `tables` maps a record's table to the store's, or to -1
  // to skip it. Returns how many it took.
  int64_t Add(const RowColumns& columns, const std::vector<int>& tables);

  // Orders the records by stripe, and frees memory that is not needed any more.
  void Finish();

  const std::vector<uint64_t>& table_salts() const { return table_salts_; }
  int dim() const { return dim_; }
  // After Finish: records with the store's table, in the order of `order`.
  const RowColumns& columns() const { return columns_; }
  const RecordOrder& order() const { return order_; }

  // Finds an id's record among the columns; -1 if it has none. `hash` is its Stripe::HashOf.
  int64_t Find(int table, uint64_t hash, int64_t id) const {
    return places_.empty() ? -1 : places_[PlaceOf(table, hash, id)];
  }
  // How many updates the row of a record has had once it is applied.
  float UpdatesOf(int64_t at) const;
  // The last step that updated a row, plus 1.
  int64_t steps() const { return steps_; }
  // The records of a table, as a range of the columns.
  std::pair<int64_t, int64_t> RangeOf(int table) const;

 private:
  // Finds the place in `places_` that has an id's record, or is free for it.
  size_t PlaceOf(int table, uint64_t hash, int64_t id) const;
  void MakePlaces();
  void Append(int16_t table, uint64_t hash, int64_t id);
  void Set(int64_t i, const RowColumns& from, int64_t at);

  const std::vector<uint64_t> table_salts_;
  const int dim_, shard_, num_shards_;
  std::vector<uint64_t> hashes_;  // RowHash of the records, until Finish
  // By hash: a record, or -1. Its size is a power of two, and twice the records at least.
  std::vector<int64_t> places_;
  RowColumns columns_;
  RecordOrder order_;
  int64_t steps_ = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_STAGED_ROWS_H_
