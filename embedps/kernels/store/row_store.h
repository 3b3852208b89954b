// The rows of one group of tables on one shard: lookups, updates, cuts and loads side by side.
// No TensorFlow and no Arrow in here.
#ifndef EMBEDPS_KERNELS_STORE_ROW_STORE_H_
#define EMBEDPS_KERNELS_STORE_ROW_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/parallel.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/initializers.h"
#include "embedps/kernels/store/optimizers.h"
#include "embedps/kernels/store/outgoing_rows.h"
#include "embedps/kernels/store/page_pool.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/stripe_order.h"

namespace embedps {

struct TableConfig {
  std::string name;
  int64_t seed = 0;
  InitializerConfig initializer;
  int64_t max_rows = 0;  // on this shard; 0 is no limit
};

struct RowStoreConfig {
  std::string group;  // for messages
  int dim = 0;
  OptimizerConfig optimizer;
  std::vector<TableConfig> tables;
};

struct RowStoreStats {
  std::vector<int64_t> rows;     // of each table
  int64_t memory_bytes = 0;      // chunks, indices and dirty lists
  int64_t rejected_inserts = 0;  // looked up in training when the table was full
  int64_t skipped_updates = 0;   // for rows that were not there
};

// A table's rows are striped by the hash of their id; each stripe has one lock, an index from id to
// row, chunks of rows, and a list of the rows first touched since the last cut.
class RowStore {
 public:
  enum class CutKind { kBase, kDelta };

  explicit RowStore(RowStoreConfig config);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  const RowStoreConfig& config() const { return config_; }
  int num_tables() const { return static_cast<int>(config_.tables.size()); }
  RowFileSchema FileSchema() const;

  // Copies the embeddings [num_ids, dim]. An absent row is created when `insert`, unless its table
  // is full (then its initial value is given and no row is kept); otherwise it reads as zeros.
  void Lookup(const IdBatch& batch, bool insert, const ParallelFor& parallel, float* embeddings);

  // Applies gradients [num_ids, dim] to the rows that are there; sets their last step, counts one
  // more update in their frequency, and lists them for the next cut.
  void Update(const IdBatch& batch, const float* gradients, float learning_rate, uint32_t step,
              const ParallelFor& parallel);

  // Removes rows; absent ids are passed over. Returns how many were there.
  int64_t Remove(int table, const int64_t* ids, int64_t num_ids);

  // Removes a table's rows whose last step is before `step` and that have fewer than
  // `max_frequency` updates. Returns how many.
  int64_t Evict(int table, uint32_t step, uint32_t max_frequency);

  // Gives every row (base), or the rows touched and ids removed since cut `since` (delta), to
  // `sink` in batches, each row whole and under its stripe's lock, while training goes on. Returns
  // this cut's number. `since` is the last cut whose records were committed, -1 if none was; what
  // it did not cover is given again. A delta since a cut that the lists no longer go back to is
  // refused; a base always works. Memory: one batch of rows, and 4 bytes a touched row.
  // One cut at a time; a second waits.
  Status Cut(CutKind kind, int64_t since, const RowSink& sink, int64_t* cut);

  // Gives every row to `sink` beside the cuts, which it takes no part in: each row whole, as of
  // some moment of the copying. With the records of deltas since a cut before its beginning, up to
  // one that began after its end, it is the rows of the last.
  Status Copy(const RowSink& sink);

  // Copies under way end as failures.
  void StopCopies() { ++copies_stopped_; }

  // Takes records: rows overwrite, removals remove. Only ids of `shard` among `num_shards` are
  // taken. `tables` maps a record's table to ours, -1 to pass over. Without `slots`, optimizer
  // slots keep their initial values. Returns how many records were taken. Nothing loaded or removed
  // here is listed for the next cut.
  int64_t Load(const RowColumns& columns, const std::vector<int>& tables, int shard, int num_shards,
               bool slots, const ParallelFor& parallel);

  // Forgets what was touched, as after a restore. Returns the cut to give as `since` next.
  int64_t MarkClean();

  // Removes every row and forgets every touch and removal.
  void Clear();

  RowStoreStats Stats() const;

  // Whether rows were looked up or updated in the last second.
  bool IsBusy() const;

 private:
  Stripe& stripe(int table, uint64_t row_hash) const;
  void LoadRecord(const RowColumns& columns, int64_t i, int table, uint64_t hash, bool slots,
                  Stripe* stripe);
  void CutStripe(int table, Stripe& stripe, CutKind kind, bool drop_pending,
                 OutgoingRows* outgoing);

  const RowStoreConfig config_;
  std::vector<uint64_t> salts_;                                  // of each table
  PagePool pool_;                                                // of the stripes' rows and indexes
  std::vector<std::unique_ptr<Stripe>> stripes_;                 // kStripes a table
  std::vector<std::atomic<int64_t>> table_rows_;                 // live rows of each table
  std::atomic<std::chrono::steady_clock::duration> last_use_{};  // of a lookup or an update
  std::atomic<int64_t> rejected_inserts_{0};
  std::atomic<int64_t> skipped_updates_{0};
  std::atomic<int64_t> copies_stopped_{0};

  std::mutex cut_mutex_;   // held for a whole cut; guards the two below
  uint32_t last_cut_ = 0;  // rows touched later are in the stripes' open lists, or copied in it
  int64_t pending_since_ = -1;  // the stripes' pending lists hold what was touched in
                                // (pending_since_, last_cut_]
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_STORE_H_
