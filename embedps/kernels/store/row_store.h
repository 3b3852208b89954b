// The rows of one group of tables on one shard. Lookups, updates, cuts and loads run concurrently.
// Uses neither TensorFlow nor Arrow.
#ifndef EMBEDPS_KERNELS_STORE_ROW_STORE_H_
#define EMBEDPS_KERNELS_STORE_ROW_STORE_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/files/counter_columns.h"
#include "embedps/kernels/files/initial_vectors.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/float_dtype.h"
#include "embedps/kernels/runtime/mutex.h"
#include "embedps/kernels/runtime/parallel.h"
#include "embedps/kernels/runtime/status.h"
#include "embedps/kernels/store/admission.h"
#include "embedps/kernels/store/ahead_reader.h"
#include "embedps/kernels/store/counter_map.h"
#include "embedps/kernels/store/evicted_rows.h"
#include "embedps/kernels/store/eviction.h"
#include "embedps/kernels/store/initializers.h"
#include "embedps/kernels/store/lookup_counts.h"
#include "embedps/kernels/store/optimizers.h"
#include "embedps/kernels/store/outgoing_rows.h"
#include "embedps/kernels/store/page_pool.h"
#include "embedps/kernels/store/reads_under_way.h"
#include "embedps/kernels/store/row_layout.h"
#include "embedps/kernels/store/row_tier.h"
#include "embedps/kernels/store/server_memory.h"
#include "embedps/kernels/store/staged_rows.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/stripe_order.h"
#include "embedps/kernels/store/sweeper.h"
#include "embedps/kernels/store/table_eviction.h"
#include "embedps/kernels/store/table_scan.h"
#include "embedps/kernels/store/tier_memory.h"
#include "embedps/kernels/store/vector_function.h"

namespace embedps {

struct TableConfig {
  std::string name;
  int64_t seed = 0;
  InitializerConfig initializer;
  AdmissionConfig admission;
  int64_t max_rows = 0;               // on this shard; 0 is no limit. Further ids get no row
  bool absent_reads_initial = false;  // an absent row reads as its initial value, not as zeros
  EvictionConfig eviction;
};

inline bool HasAdmission(const TableConfig& table) {
  return table.admission.kind != AdmissionConfig::Kind::kAlways;
}

class LaterRows;

struct RowStoreConfig {
  std::string group;  // for messages
  int dim = 0;
  FloatDtype row_dtype = FloatDtype::kFloat32;   // of embeddings
  FloatDtype slot_dtype = FloatDtype::kFloat32;  // of optimizer slots
  OptimizerConfig optimizer;
  std::vector<TableConfig> tables;
  bool sweeps_itself = false;  // a thread calls Sweep
  bool compact = false;        // little room for growth: rows come from files only
  // Whose limit holds for all stores of the server together; null if there is none. It has room for
  // the LeastServerBytes of each table.
  std::shared_ptr<ServerMemory> server_memory;
  // Whose limit holds for all stores of the server together: the coldest rows go to disk. Null if
  // all rows are in memory. Not beside `server_memory`.
  std::shared_ptr<TierMemory> tier_memory;
  // Opens the files of evicted rows; null if these are dropped.
  EvictedRows::OpenFile open_evicted_file;
};

// Returns a table's part of what the files of evicted rows take. Byte limits count it.
inline int64_t EvictedBytesPerTable(const RowStoreConfig& config) {
  const auto num_tables = static_cast<int64_t>(config.tables.size());
  return config.open_evicted_file ? (EvictedRows::kMemoryBytes + num_tables - 1) / num_tables : 0;
}

inline RowLayout LayoutOf(const RowStoreConfig& config, const BodyArena* arena = nullptr) {
  const auto slots = InitialOptimizerSlots(config.optimizer, config.dim);
  return RowLayout(config.dim, static_cast<int>(slots.size()), config.row_dtype, config.slot_dtype,
                   arena);
}

struct RowStoreStats {
  std::vector<int64_t> rows;         // of each table
  std::vector<int64_t> table_bytes;  // of each table's rows, indexes, lists and counters
  int64_t memory_bytes = 0;          // of all tables, and of memory that is ready for more rows
  int64_t rejected_inserts = 0;      // training lookups of absent ids of a full table
  int64_t skipped_updates = 0;       // updates of absent rows
};

// The RowHash of an id decides a row's stripe. Each stripe has one lock, an index from id to row,
// chunks of rows, and a list of the rows touched since the last cut.
class RowStore {
 public:
  enum class CutKind { kBase, kDelta };

  explicit RowStore(RowStoreConfig config);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  const RowStoreConfig& config() const { return config_; }
  int num_tables() const { return static_cast<int>(config_.tables.size()); }
  // The schema of a file that stores what memory holds, bit for bit.
  RowFileSchema FileSchema() const;

  // Copies the embeddings [num_ids, dim] as float32. With `insert`, creates absent rows, unless the
  // table is full; at a limit of its eviction, a new row displaces another. A row that stays absent
  // reads as its table declares, with or without `insert`. Fails, and then changes nothing, if a
  // function that computes initial vectors does.
  Status Lookup(const IdsByTable& batch, bool insert, const ParallelFor& parallel,
                float* embeddings);

  // Reads a training step's rows as Lookup with `insert`, but leaves the ids of tables that admit
  // to Admit: it marks those that are absent in `shown.absent` and changes nothing. Such an id
  // reads as its initial value if this step will admit it, and else, or if the table is full, as
  // its table declares.
  Status LookupShown(const IdsByTable& batch, const ShownIds& shown, const ParallelFor& parallel,
                     float* embeddings);

  // Counts the examples of the ids that LookupShown marked, and creates the rows of those that they
  // admit. An id that another step has admitted since is left as it is. Called once per step,
  // before Update: a step whose gradients are not applied counts nothing.
  Status Admit(const IdsByTable& batch, const ShownIds& shown, const ParallelFor& parallel);

  // Whether a table has a policy of admission, and whether one has counters.
  bool has_admission() const;
  bool has_counters() const;

  // Applies gradients [num_ids, dim] to the rows that exist (row_updater.h). Sets their last step,
  // increments their frequency, and lists them for the next cut.
  void Update(const IdsByTable& batch, const float* gradients, float learning_rate, uint32_t step,
              const ParallelFor& parallel);

  // Estimates of each id the share of steps that update its row, by Laplace's rule of succession:
  // (updates + 1) / (steps + 2). A row that is absent has had no updates.
  void UpdateRates(const IdsByTable& batch, const ParallelFor& parallel, float* rates);

  // Removes rows, and forgets the counters of ids without one. Returns how many rows it removed.
  int64_t Remove(int table, const int64_t* ids, int64_t num_ids);

  // Removes a table's rows whose last step is before `step` and that have fewer than
  // `max_frequency` updates. Returns how many rows it removed.
  int64_t Evict(int table, uint32_t step, uint32_t max_frequency);

  // Removes the rows that the tables' policies of age and norm say, in small slices. Ends early if
  // `pause`, which it calls between slices, returns false.
  void Sweep(const Sweeper::Pause& pause);

  // Holds the store's own sweeps, or lets them go on.
  void HoldSweeps(bool held) {
    if (sweeper_) sweeper_->Hold(held);
  }

  // Whether a sweep could find enough rows that the last one did not.
  bool IsSweepDue() const;

  // Sets the step before which a table's rows are too old by their event time.
  void SetOldestStep(int table, uint32_t step) { evictions_[table]->SetOldestStep(step); }

  // The rows that go, on their way to files; null if they are dropped. Rows that a limit has no
  // place for while records are loaded never were in the store, and are not among them.
  EvictedRows* evicted_rows() { return evicted_rows_.get(); }

  // Gives rows to `sink` in batches while training continues: every row (base), or the rows touched
  // and the ids removed since cut `since` (delta). Copies each row under its stripe's lock. Sets
  // `*cut` to this cut's number. `since` is the last cut whose records were committed, or -1; later
  // records are given again. A delta fails if the lists no longer reach back to `since`; a base
  // always works. Uses memory for one batch of rows, and 4 bytes per touched row. A second cut
  // waits for the first.
  // If there are counters, `counters` gets them first, in the same way.
  Status Cut(CutKind kind, int64_t since, const RowSink& sink, int64_t* cut,
             const CounterSink* counters = nullptr) LOCKS_EXCLUDED(cut_mutex_);

  // Gives every row to `sink`, independently of cuts. Each row is consistent, as of some moment
  // during the copy. Applying the deltas from a cut before the copy's start up to one that began
  // after its end yields the rows of the last of these cuts.
  Status Copy(const RowSink& sink);
  Status CopyCounters(const CounterSink& sink) const;

  // Makes running copies fail.
  void StopCopies() { ++copies_stopped_; }

  // Loads a file's records in order: rows overwrite, removals remove. Loads only ids of `shard`
  // among `num_shards`. `tables` maps a record's table to this store's, or to -1 to skip it.
  // Without `optimizer_slots`, these keep their initial values. Floats of another dtype are rounded
  // to the nearest. Returns how many records it loaded. The next cut does not list what is loaded
  // or removed here. Files have rows by stripe, and a stripe's load on one thread: so many batches
  // at once load in parallel.
  int64_t Load(const std::vector<const RowColumns*>& batches, const std::vector<int>& tables,
               int shard, int num_shards, bool optimizer_slots, const ParallelFor& parallel);
  int64_t Load(const RowColumns& columns, const std::vector<int>& tables, int shard, int num_shards,
               bool optimizer_slots, const ParallelFor& parallel) {
    return Load({&columns}, tables, shard, num_shards, optimizer_slots, parallel);
  }

  // From now on new rows of a table begin with these vectors, where they have the id; those that
  // were added last come first. Not beside other calls.
  void AddInitialVectors(int table, std::shared_ptr<const InitialVectors> vectors) {
    initial_vectors_[table].push_back(std::move(vectors));
  }

  // Whether a table's id is of `shard` among `num_shards`.
  bool IsOfShard(int table, int64_t id, int shard, int num_shards) const;

  // Stages records for Apply, as Load without optimizer slots would take them. Finish it first.
  StagedRows Stage(int shard, int num_shards) const {
    return StagedRows(salts_, config_.dim, shard, num_shards);
  }

  // Whether records were staged for the same tables.
  bool CanApply(const StagedRows& staged) const {
    return staged.dim() == config_.dim && staged.table_salts() == salts_;
  }

  // From now on Lookup without `insert` and UpdateRates read as if `staged`, which CanApply, were
  // applied, until Apply has applied it beside them. So all rows change at once, however many they
  // are. Not beside lookups.
  void Show(std::shared_ptr<const StagedRows> staged);

  // Loads staged records, which takes a fraction of Load's time.
  void Apply(const StagedRows& staged, const ParallelFor& parallel);

  // Reads rows as Lookup without `insert` will once `staged`, which CanApply, is applied.
  void LookupStaged(const IdsByTable& batch, const StagedRows& staged, const ParallelFor& parallel,
                    float* embeddings);

  // Tells of each staged record of a table, in their order, whether its row will be read as other
  // bits than now.
  void CompareStaged(int table, const StagedRows& staged, const ParallelFor& parallel,
                     bool* differs) const;

  // Loads counters of `tables` after the rows of the same checkpoint, and after MarkClean. Ignores
  // those of ids that have a row. Returns how many records belong to this shard.
  int64_t LoadCounters(const CounterColumns& columns, const std::vector<std::string>& tables,
                       int shard, int num_shards);

  // Forgets which rows were touched, for instance after a restore. Returns the `since` of the next
  // delta, which has the removal of each record that a limit displaced.
  int64_t MarkClean() LOCKS_EXCLUDED(cut_mutex_);

  // Removes every row and the initial vectors, and forgets which rows were touched and removed.
  void Clear() LOCKS_EXCLUDED(cut_mutex_);

  RowStoreStats Stats() const;

  // Begins to bring those of a batch's rows into memory that are on disk, and returns.
  void ReadAhead(const IdsByTable& batch);
  void WaitForAhead();

  // The rows on disk; null if all are in memory.
  const RowTier* tier() const { return tier_.get(); }
  // Why the store's rows are lost, if they are: whoever called a function without a status asks.
  Status failure() const { return tier_ == nullptr ? Status::Ok() : tier_->failure(); }

  // Counts the rows of a table that went, by cause.
  std::array<int64_t, kNumEvictionCauses> Evicted(int table) const {
    return evictions_[table]->Counts();
  }
  std::vector<AdmissionStats> StatsOfAdmission() const;

  // Counts what training steps looked up, repeated attempts at a step included.
  const LookupCounts& lookup_counts() const { return lookup_counts_; }

  // Visits all rows of a table in small slices, and calls `pause` after each.
  TableScan Scan(int table, const std::function<void()>& pause) const;

  // Lists the ids of a table's rows, in no order.
  std::vector<int64_t> Ids(int table) const;

  // Whether rows were looked up or updated in the last second.
  bool IsBusy() const;

 private:
  int ChunkBits(const TableConfig& table) const;
  // Of the stripes and of the files of evicted rows, outside of the pool.
  int64_t HeapBytes() const {
    return static_cast<int64_t>(stripes_.size() * sizeof(Stripe)) + EvictedBytes();
  }
  int64_t EvictedBytes() const { return evicted_rows_ ? EvictedRows::kMemoryBytes : 0; }
  // Prefetches what the visit of a bin begins with; -1 is none.
  void PrefetchBin(int bin) const;
  // Computes the vectors of the rows that a step will create, where a function does. So that no
  // lock is held meanwhile, a row that goes in between is created by the next step that asks.
  Status ComputeNew(const IdsByTable& batch, const StripeOrder& order, const ShownIds* shown,
                    NewVectors* vectors);
  // Creates the row of an absent id, with initial values. Returns kNone if the table is full, or
  // the id's vector was not computed. The caller holds the stripe's lock.
  uint32_t InsertRow(int bin, uint64_t hash, int64_t id, const NewVectors& vectors, Stripe* stripe)
      EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);
  // Visits entries of one stripe, whose lock it takes. Those that `later` takes it leaves out.
  using BinVisit =
      std::function<void(int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last,
                         const RowTier::Fetched& fetched, LaterRows* later)>;
  // Visits the rows of a batch: first those in memory, then those on disk, which it reads together.
  Status VisitRows(const IdsByTable& batch, const StripeOrder& order, const ParallelFor& parallel,
                   int64_t cost, const BinVisit& visit);
  // Brings those of a batch's rows into memory that are on disk, for who looks them up next.
  void BringIn(const IdsByTable& batch);
  // Reads those of a batch's rows that are on disk.
  Status Fetch(const IdsByTable& batch, const StripeOrder& order, const ParallelFor& parallel,
               LaterRows* later);
  // Reads those of some of a stripe's rows that are on disk; the keys are their numbers. A failure
  // fails the tier.
  void FetchRows(int bin, const std::vector<uint32_t>& numbers, RowTier::Fetched* fetched) const;
  // The same of those whose norms a scan takes, among a slice of a stripe's rows.
  void FetchSome(int bin, uint32_t first, uint32_t stride, RowTier::Fetched* fetched) const;
  // Gives a row for a copy of its floats; null if it cannot be read. The caller holds the lock.
  const RowHeader* ViewRow(int bin, uint32_t number, const RowTier::Fetched& fetched,
                           RowTier::Image* image) const NO_THREAD_SAFETY_ANALYSIS {
    if (tier_ == nullptr) return stripes_[bin]->Row(number);
    return tier_->View(bin, number, fetched, number, image);
  }
  Status LookUp(const IdsByTable& batch, bool insert, const ShownIds* shown,
                const ParallelFor& parallel, float* embeddings);
  // Reads a block of rows that are all in memory, without making any: see block_reads.cc.
  void ReadBlock(const IdsByTable& batch, const StripeOrder::Entry* first,
                 const StripeOrder::Entry* last, float* embeddings) const NO_THREAD_SAFETY_ANALYSIS;
  void MakeCounters();
  void MakeTier();
  // Gives a row that goes to the files of such.
  void AddEvicted(int table, const RowHeader& row, EvictionCause cause) const;
  // Reads ids without a row for a training step, and marks them as absent.
  void ReadShown(int bin, const IdsByTable& batch, const std::vector<StripeOrder::Entry>& absent,
                 const ShownIds& shown, const NewVectors& vectors, float* embeddings) const;
  // Whether examples of a step admit an id without a row. A table without counters does not need
  // `hashes`. The caller holds the stripe's lock.
  bool Admits(int bin, IdHashes hashes, int64_t id, int32_t examples, uint32_t step) const;
  // The same, and counts the examples if they do not.
  bool CountShown(int bin, IdHashes hashes, int64_t id, int32_t examples, uint32_t step);
  Status CutCounters(CutKind kind, bool drop_pending, uint32_t number, const CounterSink& sink);
  // Writes what an id without a row reads as.
  void ReadAbsent(int table, int64_t id, float* out) const;
  uint32_t LastStep() const;
  // Writes a new row's embedding and optimizer slots.
  void InitializeRow(int table, int64_t id, const NewVectors& vectors, RowHeader* row) const;
  // Computes an absent row's embedding [dim], as it reads once it is stored. Returns false if it is
  // not among `vectors` and a function must compute it.
  bool InitialEmbedding(int table, int64_t id, const NewVectors& vectors, float* embedding) const;
  // Loads records of batches; `order` has a record's batch, and its place there (kRecordBits).
  void LoadInOrder(const std::vector<const RowColumns*>& batches, const RecordOrder& order,
                   bool optimizer_slots, const ParallelFor& parallel);
  void LoadRecord(const RowColumns& columns, int64_t i, int bin, uint64_t hash,
                  bool optimizer_slots, Stripe* stripe) EXCLUSIVE_LOCKS_REQUIRED(stripe->mutex);
  void NoteStep(uint32_t step);
  std::shared_ptr<const StagedRows> Shown() const;
  void ReadStaged(const IdsByTable& batch, const StagedRows& staged, const ParallelFor& parallel,
                  float* embeddings) const;
  // Writes what an id reads as once its staged record is applied.
  void ReadRecord(int table, const StagedRows& staged, int64_t at, float* out) const;
  // The rows of a base or a copy that were on disk when the others of their stripe were copied, by
  // stripe and number. They follow in the order in which they lie there: one by one they would be
  // as many random reads. Empty if few rows are on disk.
  using RowsLeft = std::vector<std::vector<bool>>;
  RowsLeft NoneLeft() const;
  // Copies these. With `unlists` later changes list a row again. Stops once `goes_on` is false.
  void CopyLeft(bool unlists, const std::function<bool()>& goes_on, RowsLeft* left,
                OutgoingRows* outgoing);
  // The rows of a delta that were on disk when the others of their stripe were copied. There are at
  // most MostPostponed of them: a small share of the rows on disk, so that each read has many.
  struct RowOnDisk {
    uint32_t location;
    int32_t bin;
    uint32_t number;
  };
  using PostponedRows = std::vector<RowOnDisk>;
  size_t MostPostponed() const;
  // Copies these in the order in which they lie on disk. Later changes list a row again.
  void CopyPostponed(PostponedRows* rows, OutgoingRows* outgoing);
  // A base leaves rows in `left`, and a delta postpones them, unless it is null.
  void CutStripe(int bin, CutKind kind, bool drop_pending, RowsLeft* left, PostponedRows* postponed,
                 OutgoingRows* outgoing);

  const RowStoreConfig config_;
  const std::unique_ptr<BodyArena> arena_;  // null if no row is on disk
  const RowLayout layout_;
  const std::vector<float> initial_optimizer_slots_;
  std::vector<uint64_t> salts_;  // of each table
  bool has_functions_ = false;   // that compute initial vectors
  PagePool own_pool_;
  PagePool* const pool_;                                 // for the stripes' rows and indexes
  std::vector<std::unique_ptr<Stripe>> stripes_;         // kStripes per table
  std::vector<std::unique_ptr<CounterBudget>> budgets_;  // of each table; null without counters
  // By stripe, under its lock; null if the table has no counters.
  std::vector<std::unique_ptr<CounterMap>> counters_;
  std::vector<std::vector<std::shared_ptr<const InitialVectors>>> initial_vectors_;  // by table
  std::vector<std::atomic<int64_t>> table_rows_;          // live rows of each table
  std::vector<std::atomic<int64_t>> admitted_, refused_;  // of each table
  LookupCounts lookup_counts_;
  std::unique_ptr<EvictedRows> evicted_rows_;
  std::vector<std::unique_ptr<TableEviction>> evictions_;  // of each table
  std::atomic<std::chrono::steady_clock::duration>
      last_use_{};                 // time of the last lookup or update
  std::atomic<int64_t> steps_{0};  // the last step that updated a row, plus 1
  std::atomic<int64_t> rejected_inserts_{0};
  std::atomic<int64_t> skipped_updates_{0};
  std::atomic<int64_t> copies_stopped_{0};
  mutable Mutex shown_mutex_;
  std::shared_ptr<const StagedRows> shown_ GUARDED_BY(shown_mutex_);  // see Show

  Mutex cut_mutex_;  // held during a cut
  // Rows touched since are in the stripes' open lists, or the cut copied them.
  uint32_t last_cut_ GUARDED_BY(cut_mutex_) = 0;
  // The stripes' pending lists hold the rows touched in (pending_since_, last_cut_].
  int64_t pending_since_ GUARDED_BY(cut_mutex_) = -1;
  std::unique_ptr<RowTier> tier_;       // null if no row is on disk
  ReadsUnderWay reads_;                 // of its rows
  std::unique_ptr<AheadReader> ahead_;  // with a tier
  std::unique_ptr<Sweeper> sweeper_;    // the last member, as its thread uses the others
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_STORE_ROW_STORE_H_
