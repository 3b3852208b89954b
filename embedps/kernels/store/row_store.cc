#include "embedps/kernels/store/row_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/block_reads.h"
#include "embedps/kernels/store/outgoing_rows.h"
#include "embedps/kernels/store/row_updater.h"
#include "embedps/kernels/store/sort_ids.h"
#include "embedps/kernels/store/stripe.h"
#include "embedps/kernels/store/tiered_rows.h"

namespace embedps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Clock::duration kBusy =
    std::chrono::seconds(1);          // how long a lookup or update counts as use
constexpr uint32_t kSliceRows = 256;  // rows to copy while holding a stripe's lock
constexpr size_t kCompactAheadBytes = 4 << 20;
constexpr uint32_t kAheadRows = 16;  // rows to prefetch before a delta copies them
constexpr int kRecordBits = 40;      // of a record's place among the batches: its place in one
constexpr int64_t kRecordMask = (int64_t{1} << kRecordBits) - 1;
constexpr int kAheadRecords = 8;      // of files, whose rows are prefetched before they are loaded
constexpr int64_t kServerStores = 4;  // that share a server's limit, about

}  // namespace

RowStore::RowStore(RowStoreConfig config)
    : config_(std::move(config)),
      arena_(config_.tier_memory
                 ? std::make_unique<BodyArena>(LayoutOf(config_).body_bytes(),
                                               config_.tier_memory->config().max_memory_bytes,
                                               config_.tier_memory->config().chunk_slots)
                 : nullptr),
      layout_(LayoutOf(config_, arena_.get())),
      initial_optimizer_slots_(InitialOptimizerSlots(config_.optimizer, config_.dim)),
      pool_(config_.tier_memory     ? config_.tier_memory->pool()
            : config_.server_memory ? config_.server_memory->pool()
                                    : &own_pool_),
      initial_vectors_(config_.tables.size()),
      table_rows_(config_.tables.size()),
      admitted_(config_.tables.size()),
      refused_(config_.tables.size()),
      lookup_counts_(config_.tables.size()) {
  if (config_.compact) pool_->SetMostAheadBytes(kCompactAheadBytes);
  for (const TableConfig& table : config_.tables) {
    salts_.push_back(TableSalt(table.name));
    has_functions_ |= table.initializer.kind == InitializerConfig::Kind::kFunction;
    const int chunk_bits = ChunkBits(table);
    for (int i = 0; i < kStripes; ++i)
      stripes_.push_back(
          std::make_unique<Stripe>(layout_.head_bytes(), pool_, salts_.back(), chunk_bits));
  }
  MakeCounters();
  if (config_.open_evicted_file) {
    evicted_rows_ = std::make_unique<EvictedRows>(layout_, FileSchema(), config_.open_evicted_file);
  }
  bool sweeps = false;
  size_t most_bytes = 0;  // of all tables, if all have a limit
  for (int t = 0; t < num_tables(); ++t) {
    const EvictionConfig& eviction = config_.tables[t].eviction;
    TableEviction::OnEvicted on_evicted;
    if (evicted_rows_) {
      on_evicted = [this, t](const RowHeader& row, EvictionCause cause) {
        AddEvicted(t, row, cause);
      };
    }
    evictions_.push_back(std::make_unique<TableEviction>(
        eviction, config_.tables[t].admission, layout_, EvictedBytesPerTable(config_),
        &stripes_[t * kStripes], &table_rows_[t], config_.server_memory.get(), on_evicted));
    sweeps |= eviction.sweeps();
    if (eviction.max_bytes == 0) most_bytes = SIZE_MAX;
    if (most_bytes != SIZE_MAX) most_bytes += evictions_[t]->MostPoolBytes();
  }
  if (config_.server_memory) {
    config_.server_memory->AddStore(TableEviction::PoolShare(layout_), HeapBytes());
  } else if (most_bytes > 0 && !config_.tier_memory) {
    pool_->SetMostBytes(most_bytes);
  }
  if (config_.tier_memory) MakeTier();
  if (sweeps && config_.sweeps_itself) {
    sweeper_ =
        std::make_unique<Sweeper>([this](const Sweeper::Pause& pause) { Sweep(pause); },
                                  [this] { return IsSweepDue(); }, [this] { return IsBusy(); });
  }
}

int RowStore::ChunkBits(const TableConfig& table) const {
  int bits = config_.compact ? kCompactChunkBits : kChunkBits;
  if (table.eviction.max_bytes > 0) {
    bits = std::min(bits, TableEviction::ChunkBits(table.eviction.max_bytes, layout_));
  }
  if (config_.server_memory) {
    // Other stores share the limit too.
    const int64_t part = config_.server_memory->max_bytes() / (kServerStores * num_tables());
    bits = std::min(bits, TableEviction::ChunkBits(part, layout_));
  }
  return bits;
}

RowStore::~RowStore() {
  if (!config_.server_memory && !tier_) return;
  sweeper_.reset();
  ahead_.reset();
  if (tier_) tier_->Stop();
  for (const auto& stripe : stripes_) stripe->Clear();  // other stores may use its memory
  if (config_.server_memory) config_.server_memory->RemoveStore(HeapBytes());
}

RowFileSchema RowStore::FileSchema() const {
  RowFileSchema schema;
  schema.dim = config_.dim;
  for (const TableConfig& table : config_.tables) schema.tables.push_back(table.name);
  schema.optimizer_slots = OptimizerSlots(config_.optimizer, config_.dim);
  schema.embedding_encoding = layout_.embedding_encoding();
  schema.optimizer_slot_encoding = layout_.optimizer_slot_encoding();
  schema.metadata["group"] = config_.group;
  return schema;
}

bool RowStore::InitialEmbedding(int table, int64_t id, const NewVectors& computed,
                                float* embedding) const {
  const TableConfig& config = config_.tables[table];
  const auto& vectors = initial_vectors_[table];
  if (std::none_of(vectors.rbegin(), vectors.rend(),
                   [&](const auto& each) { return each->Read(id, embedding); })) {
    if (config.initializer.kind == InitializerConfig::Kind::kFunction) {
      const float* const found = computed.Find(table, id);
      if (found == nullptr) return false;
      std::copy_n(found, config_.dim, embedding);
    }
    InitializeEmbedding(config.initializer, config.seed, salts_[table], id, config_.dim, embedding);
  }
  RoundInPlace(config_.row_dtype, config_.dim, embedding);
  return true;
}

Status RowStore::Lookup(const IdsByTable& batch, bool insert, const ParallelFor& parallel,
                        float* embeddings) {
  // Before the rows: what they do not have yet is in it, even if it is applied meanwhile.
  const std::shared_ptr<const StagedRows> shown = insert ? nullptr : Shown();
  EMBEDPS_RETURN_IF_ERROR(LookUp(batch, insert, nullptr, parallel, embeddings));
  if (shown != nullptr) ReadStaged(batch, *shown, parallel, embeddings);
  return Status::Ok();
}

Status RowStore::LookupShown(const IdsByTable& batch, const ShownIds& shown,
                             const ParallelFor& parallel, float* embeddings) {
  std::fill_n(shown.absent, batch.num_ids, uint8_t{0});
  return LookUp(batch, /*insert=*/true, &shown, parallel, embeddings);
}

Status RowStore::LookUp(const IdsByTable& batch, bool insert, const ShownIds* shown,
                        const ParallelFor& parallel, float* embeddings) {
  last_use_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
  if (insert) lookup_counts_.Add(batch);
  const StripeOrder order(batch, salts_, parallel);
  // A new row at a limit may displace one of another stripe, if nobody holds that stripe's lock: a
  // block of reads would hold many.
  const bool displaces = std::any_of(evictions_.begin(), evictions_.end(),
                                     [](const auto& each) { return each->displaces(); });
  if (!insert && tier_ == nullptr && !displaces) {
    order.ForEachBlock(parallel, 100 + config_.dim,
                       [&](const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
                         ReadBlock(batch, first, last, embeddings);
                       });
    return Status::Ok();
  }
  NewVectors vectors;
  if (insert) EMBEDPS_RETURN_IF_ERROR(ComputeNew(batch, order, shown, &vectors));
  const int dim = config_.dim;
  return VisitRows(batch, order, parallel, 100 + dim,
                   [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last,
                       const RowTier::Fetched& fetched, LaterRows* later) {
                     Stripe& stripe = *stripes_[bin];
                     const int t = bin / kStripes;
                     const bool admits = HasAdmission(config_.tables[t]);
                     const MutexLock lock(&stripe.mutex);
                     const TableEviction::Visit visit(evictions_[t].get(), &stripe);
                     PrefetchBin(last->bin);
                     RowFinder finder(stripe, arena_.get(), first, last);
                     RowTier::Image image(tier_.get());
                     // Admission decides about them. It keeps its memory from bin to bin.
                     thread_local std::vector<StripeOrder::Entry> absent;
                     absent.clear();
                     for (const auto* e = first; e < last; ++e) {
                       const int64_t id = batch.ids[e->at];
                       float* out = embeddings + int64_t{e->at} * dim;
                       uint32_t number = finder.Next(e, id);
                       if (number == kNone && insert && !admits) {
                         number = InsertRow(bin, e->hash, id, vectors, &stripe);
                         if (number != kNone) {
                           layout_.ReadEmbedding(*stripe.Row(number), out);
                           continue;
                         }
                       }
                       if (number == kNone && admits && shown != nullptr) {
                         absent.push_back(*e);
                         if (counters_[bin] != nullptr) {
                           counters_[bin]->PrefetchDirectory(e->row_hash);
                         }
                       } else if (number == kNone) {
                         ReadAbsent(t, id, out);
                       } else {
                         const RowHeader* row = stripe.Row(number);
                         if (later != nullptr && later->Takes(bin, number, *e)) continue;
                         if (tier_)
                           row = tier_->LookUp(bin, number, fetched, e->at, insert, &image);
                         if (row != nullptr) layout_.ReadEmbedding(*row, out);
                       }
                     }
                     if (!absent.empty())
                       ReadShown(bin, batch, absent, *shown, vectors, embeddings);
                   });
}

uint32_t RowStore::InsertRow(int bin, uint64_t hash, int64_t id, const NewVectors& vectors,
                             Stripe* stripe) {
  const int t = bin / kStripes;
  const TableConfig& table = config_.tables[t];
  const bool is_computed = table.initializer.kind == InitializerConfig::Kind::kFunction;
  if (is_computed && vectors.Find(t, id) == nullptr) return kNone;
  bool has_place = table.max_rows == 0 && evictions_[t]->Displace(stripe);
  if (!has_place) {
    const int64_t rows = table_rows_[t].fetch_add(1, std::memory_order_relaxed);
    has_place = (table.max_rows == 0 || rows < table.max_rows) &&
                (!evictions_[t]->displaces() || evictions_[t]->MakePlace(stripe));
  }
  const uint32_t number = has_place ? stripe->Insert(hash, id) : kNone;
  if (number == kNone) {
    table_rows_[t].fetch_sub(1, std::memory_order_relaxed);
    rejected_inserts_.fetch_add(1, std::memory_order_relaxed);
    refused_[t].fetch_add(1, std::memory_order_relaxed);
    return kNone;
  }
  if (tier_) tier_->Begin(bin, number, /*is_training=*/true);
  RowHeader* row = stripe->Row(number);
  if (evictions_[t]->any()) row->last_step = LastStep();  // its age counts from now
  InitializeRow(t, id, vectors, row);
  stripe->Touch(number);
  return number;
}

void RowStore::InitializeRow(int t, int64_t id, const NewVectors& vectors, RowHeader* row) const {
  if (layout_.row_dtype == FloatDtype::kFloat32) {
    InitialEmbedding(t, id, vectors, reinterpret_cast<float*>(layout_.Embedding(row)));
  } else {
    std::vector<float> embedding(layout_.dim);
    InitialEmbedding(t, id, vectors, embedding.data());
    layout_.WriteEmbedding(embedding.data(), row);
  }
  layout_.WriteOptimizerSlots(initial_optimizer_slots_, row);
}

void RowStore::ReadAbsent(int t, int64_t id, float* out) const {
  if (config_.tables[t].absent_reads_initial && InitialEmbedding(t, id, NewVectors(), out)) return;
  std::fill_n(out, config_.dim, 0.0f);
}

void RowStore::Update(const IdsByTable& batch, const float* gradients, float learning_rate,
                      uint32_t step, const ParallelFor& parallel) {
  last_use_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed);
  NoteStep(step);
  const StripeOrder order(batch, salts_, parallel);
  const int dim = config_.dim;
  // The caller asks `failure`.
  (void)VisitRows(
      batch, order, parallel, 150 + 4 * dim,
      [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last,
          const RowTier::Fetched& fetched, LaterRows* later) {
        Stripe& stripe = *stripes_[bin];
        RowUpdater updater(layout_, config_.optimizer, config_.tables[bin / kStripes].seed,
                           salts_[bin / kStripes], learning_rate, step);
        const MutexLock lock(&stripe.mutex);
        PrefetchBin(last->bin);
        RowFinder finder(stripe, arena_.get(), first, last);
        int64_t skipped = 0;
        for (const auto* e = first; e < last; ++e) {
          const uint32_t number = finder.Next(e, batch.ids[e->at]);
          if (later != nullptr && number != kNone && later->Takes(bin, number, *e)) continue;
          if (number == kNone || (tier_ && !tier_->BringIn(bin, number, fetched, e->at))) {
            ++skipped;
            continue;
          }
          RowHeader* row = stripe.Row(number);
          updater.Apply(gradients + int64_t{e->at} * dim, row);
          stripe.Touch(number);
        }
        if (skipped > 0) skipped_updates_.fetch_add(skipped, std::memory_order_relaxed);
      });
}

void RowStore::NoteStep(uint32_t step) {
  const int64_t steps = int64_t{step} + 1;
  int64_t known = steps_.load(std::memory_order_relaxed);
  while (known < steps && !steps_.compare_exchange_weak(known, steps, std::memory_order_relaxed)) {
  }
}

uint32_t RowStore::LastStep() const {
  return static_cast<uint32_t>(std::max<int64_t>(steps_.load(std::memory_order_relaxed), 1) - 1);
}

void RowStore::CutStripe(int bin, CutKind kind, bool drop_pending, RowsLeft* left,
                         PostponedRows* postponed, OutgoingRows* outgoing) {
  const int table = bin / kStripes;
  Stripe& stripe = *stripes_[bin];
  // Take the open rows. A row stays listed until it is copied: the copy contains earlier changes,
  // and later changes list the row again. So slices of rows can be copied one by one.
  RowNumbers pending(pool_), open(pool_);
  BlockList<int64_t> pending_removed(pool_), open_removed(pool_);
  uint32_t num_rows;
  {
    const MutexLock lock(&stripe.mutex);
    pending.Swap(&stripe.pending);
    pending_removed.Swap(&stripe.pending_removed);
    open.Swap(&stripe.open);
    open_removed.Swap(&stripe.open_removed);
    num_rows = stripe.used();
  }
  // Merge without the lock, or lookups would wait. Only cuts use what is pending.
  std::vector<int64_t> removed = pending_removed.Take();
  if (drop_pending) {
    pending.Clear();
    removed.clear();
  }
  pending.Merge(&open);
  const std::vector<int64_t> opened = open_removed.Take();
  removed.insert(removed.end(), opened.begin(), opened.end());
  SortIds(&removed);
  pending_removed.Append(removed);
  const std::vector<uint32_t> rows =
      kind == CutKind::kDelta ? pending.Numbers() : std::vector<uint32_t>();
  if (!pending.empty() || !removed.empty()) {
    const MutexLock lock(&stripe.mutex);
    stripe.pending.Swap(&pending);
    stripe.pending_removed.Swap(&pending_removed);
  }
  if (kind == CutKind::kDelta) {
    num_rows = static_cast<uint32_t>(rows.size());
  } else {
    removed.clear();
  }

  for (size_t i = 0; i < removed.size(); ++i) {
    outgoing->Reserve(1);
    outgoing->AppendRemoval(table, removed[i]);
  }
  const bool leaves = !left->empty();
  if (leaves) (*left)[bin].resize(num_rows);
  std::vector<uint32_t> numbers;
  RowTier::Fetched fetched;
  RowTier::Image image(tier_.get());
  for (uint32_t first = 0; first < num_rows; first += kSliceRows) {
    const uint32_t last = std::min(num_rows, first + kSliceRows);
    outgoing->Reserve(last - first);  // not under the lock
    if (tier_ && !leaves && postponed == nullptr) {
      numbers.clear();
      for (uint32_t i = first; i < last; ++i) {
        numbers.push_back(kind == CutKind::kDelta ? rows[i] : i);
      }
      FetchRows(bin, numbers, &fetched);
    }
    const MutexLock lock(&stripe.mutex);
    for (uint32_t i = first; i < last; ++i) {
      const uint32_t number = kind == CutKind::kDelta ? rows[i] : i;
      // A base's rows come in order: the processor prefetches them by itself.
      if (kind == CutKind::kDelta && num_rows - i > kAheadRows) {
        stripe.PrefetchRow(rows[i + kAheadRows]);
      }
      RowHeader* row = stripe.Row(number);
      if (leaves && row->live && layout_.IsOnDisk(*row)) {
        (*left)[bin][number] = true;  // it stays listed until it is copied
        continue;
      }
      if (postponed != nullptr && row->live && layout_.IsOnDisk(*row)) {
        postponed->push_back({PlaceOf(*row) & kPlaceMask, bin, number});  // the same
        continue;
      }
      if (row->live) {
        const RowHeader* const whole = ViewRow(bin, number, fetched, &image);
        if (whole != nullptr) outgoing->AppendRow(table, *whole);
        if (!row->saved) row->saved = 1;
      }
      if (row->listed)
        row->listed = 0;  // few rows are listed, so a base leaves most cache lines clean
    }
  }
}

Status RowStore::Cut(CutKind kind, int64_t since, const RowSink& sink, int64_t* cut,
                     const CounterSink* counters) {
  const MutexLock cut_lock(&cut_mutex_);
  const bool drop_pending = since == last_cut_;
  // A base gives every row, so it may follow any cut. It keeps the pending lists and extends them.
  if (kind == CutKind::kDelta && !drop_pending && since != pending_since_) {
    return Status::InvalidArgument(
        "group '" + config_.group + "': a delta must be since " + std::to_string(last_cut_) +
        " (the last) or " + std::to_string(pending_since_) + " (the one before it) but got " +
        std::to_string(since) + ": write a base");
  }
  // This comes before any stripe closes its list. If the sink fails half-way, this cut counts as
  // not committed, and the next one gives its rows again.
  if (drop_pending) pending_since_ = last_cut_;
  const uint32_t this_cut = ++last_cut_;
  Status counted;
  // Before the rows: an id that is admitted in between is then in both, and its row counts.
  if (counters != nullptr) counted = CutCounters(kind, drop_pending, this_cut, *counters);
  OutgoingRows outgoing(layout_, OptimizerSlots(config_.optimizer, config_.dim), sink);
  RowsLeft left = kind == CutKind::kBase ? NoneLeft() : RowsLeft();
  PostponedRows postponed;
  const bool postpones = kind == CutKind::kDelta && tier_ != nullptr && tier_->has_many_on_disk();
  for (size_t i = 0; i < stripes_.size(); ++i) {
    // Every stripe closes its list even after the sink has failed, or the lists would belong to
    // different cuts.
    CutStripe(static_cast<int>(i), kind, drop_pending, &left, postpones ? &postponed : nullptr,
              &outgoing);
    if (postponed.size() >= MostPostponed()) CopyPostponed(&postponed, &outgoing);
  }
  if (postpones) CopyPostponed(&postponed, &outgoing);
  if (!left.empty()) CopyLeft(/*unlists=*/true, [] { return true; }, &left, &outgoing);
  const Status status = outgoing.Flush();
  *cut = this_cut;
  EMBEDPS_RETURN_IF_ERROR(failure());
  return counted.ok() ? status : counted;
}

Status RowStore::Copy(const RowSink& sink) {
  const int64_t stopped = copies_stopped_;
  OutgoingRows outgoing(layout_, OptimizerSlots(config_.optimizer, config_.dim), sink);
  RowsLeft left = NoneLeft();
  const bool leaves = !left.empty();
  std::vector<uint32_t> numbers;
  RowTier::Fetched fetched;
  RowTier::Image image(tier_.get());
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stripe& stripe = *stripes_[i];
    uint32_t num_rows;
    {
      const MutexLock lock(&stripe.mutex);
      num_rows = stripe.used();
    }
    if (leaves) left[i].resize(num_rows);
    for (uint32_t first = 0; first < num_rows; first += kSliceRows) {
      if (copies_stopped_ != stopped) return Status::IoError("the copy was stopped");
      const uint32_t last = std::min(num_rows, first + kSliceRows);
      outgoing.Reserve(last - first);  // not under the lock
      if (tier_ && !leaves) {
        numbers.resize(last - first);
        std::iota(numbers.begin(), numbers.end(), first);
        FetchRows(static_cast<int>(i), numbers, &fetched);
      }
      const MutexLock lock(&stripe.mutex);
      for (uint32_t number = first; number < last; ++number) {
        RowHeader* row = stripe.Row(number);
        if (!row->live) continue;
        if (leaves && layout_.IsOnDisk(*row)) {
          left[i][number] = true;
          continue;
        }
        const RowHeader* const whole = ViewRow(static_cast<int>(i), number, fetched, &image);
        if (whole != nullptr) outgoing.AppendRow(i / kStripes, *whole);
        if (!row->saved) row->saved = 1;
      }
    }
  }
  if (leaves) {
    CopyLeft(/*unlists=*/false, [&] { return copies_stopped_ == stopped; }, &left, &outgoing);
    if (copies_stopped_ != stopped) return Status::IoError("the copy was stopped");
  }
  const Status status = outgoing.Flush();
  EMBEDPS_RETURN_IF_ERROR(failure());
  return status;
}

bool RowStore::IsOfShard(int table, int64_t id, int shard, int num_shards) const {
  return ShardOf(RowHash(salts_[table], id), num_shards) == shard;
}

int64_t RowStore::Load(const std::vector<const RowColumns*>& batches,
                       const std::vector<int>& tables, int shard, int num_shards,
                       bool optimizer_slots, const ParallelFor& parallel) {
  struct Record {
    RecordOrder::Entry entry;
    int64_t bin;
  };
  std::vector<Record> ours;
  int64_t num_records = 0;
  for (const RowColumns* columns : batches) num_records += columns->num_rows;
  ours.reserve(num_records);
  RecordOrder order;
  order.starts.assign(stripes_.size() + 1, 0);
  for (size_t b = 0; b < batches.size(); ++b) {
    const RowColumns& columns = *batches[b];
    const int64_t place = static_cast<int64_t>(b) << kRecordBits;
    for (int64_t i = 0; i < columns.num_rows; ++i) {
      const int t = tables[columns.table[i]];
      if (t < 0) continue;
      const uint64_t hash = RowHash(salts_[t], columns.id[i]);
      if (ShardOf(hash, num_shards) != shard) continue;
      const int64_t bin = t * kStripes + StripeOf(hash);
      ours.push_back({{PlaceHash(hash), place | i}, bin});
      ++order.starts[bin + 1];
    }
  }
  for (size_t bin = 0; bin < stripes_.size(); ++bin) order.starts[bin + 1] += order.starts[bin];
  order.entries.resize(ours.size());
  std::vector<int64_t> next(order.starts.begin(), order.starts.end() - 1);
  for (const Record& record : ours) order.entries[next[record.bin]++] = record.entry;
  LoadInOrder(batches, order, optimizer_slots, parallel);
  return static_cast<int64_t>(ours.size());
}

void RowStore::LoadInOrder(const std::vector<const RowColumns*>& batches, const RecordOrder& order,
                           bool optimizer_slots, const ParallelFor& parallel) {
  if (tier_) tier_->Pace();
  std::vector<int> bins;
  for (size_t bin = 0; bin < stripes_.size(); ++bin) {
    if (order.starts[bin + 1] > order.starts[bin]) bins.push_back(static_cast<int>(bin));
  }
  const auto num_bins = static_cast<int64_t>(bins.size());
  const int64_t cost = 500 * (1 + static_cast<int64_t>(order.entries.size()) / (num_bins + 1));
  parallel(num_bins, cost, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int bin = bins[b];
      const auto* first = order.entries.data() + order.starts[bin];
      const auto* last = order.entries.data() + order.starts[bin + 1];
      Stripe& s = *stripes_[bin];
      const MutexLock lock(&s.mutex);
      s.Reserve(last - first);
      for (const auto* r = first; r < last; ++r) {
        if (last - r > 2 * kAheadRecords) s.PrefetchEntry(r[2 * kAheadRecords].hash);
        if (last - r > kAheadRecords) s.PrefetchRow(s.PrefetchChunk(r[kAheadRecords].hash));
        const RowColumns& columns = *batches[r->at >> kRecordBits];
        LoadRecord(columns, r->at & kRecordMask, bin, r->hash, optimizer_slots, &s);
      }
    }
  });
}

void RowStore::LoadRecord(const RowColumns& columns, int64_t i, int bin, uint64_t hash,
                          bool optimizer_slots, Stripe* stripe) {
  const int table = bin / kStripes;
  const int64_t id = columns.id[i];
  if (columns.removed[i]) {
    if (stripe->Remove(hash, id)) {
      table_rows_[table].fetch_sub(1, std::memory_order_relaxed);
    }
    return;
  }
  uint32_t number = stripe->Find(hash, id);
  if (number == kNone) {
    table_rows_[table].fetch_add(1, std::memory_order_relaxed);
    const bool has_place = !evictions_[table]->displaces() ||
                           evictions_[table]->MakePlaceForRecord(id, columns.last_step[i],
                                                                 columns.frequency[i], stripe);
    if (has_place) number = stripe->Insert(hash, id);
    if (number == kNone) {
      table_rows_[table].fetch_sub(1, std::memory_order_relaxed);
      if (has_place) rejected_inserts_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (tier_) tier_->Begin(bin, number, /*is_training=*/false);
    if (!optimizer_slots)
      layout_.WriteOptimizerSlots(initial_optimizer_slots_, stripe->Row(number));
  } else if (tier_ && (optimizer_slots || layout_.slot_floats == 0)) {
    tier_->Renew(bin, number);  // all its floats come
  } else if (tier_ && !tier_->BringIn(bin, number, RowTier::Fetched(), 0)) {
    return;
  }
  RowHeader* row = stripe->Row(number);
  row->saved = 1;
  row->last_step = columns.last_step[i];
  NoteStep(row->last_step);
  row->frequency = std::min(columns.frequency[i], kMaxFrequency);
  layout_.WriteEmbedding(&columns.embedding[i * config_.dim], row);
  if (!optimizer_slots) return;
  int first = 0;
  for (const std::vector<float>& values : columns.optimizer_slots) {
    const int width = static_cast<int>(values.size() / columns.num_rows);
    layout_.WriteOptimizerSlots(&values[i * width], first, width, row);
    first += width;
  }
}

void RowStore::Show(std::shared_ptr<const StagedRows> staged) {
  const MutexLock lock(&shown_mutex_);
  shown_ = std::move(staged);
}

std::shared_ptr<const StagedRows> RowStore::Shown() const {
  const MutexLock lock(&shown_mutex_);
  return shown_;
}

void RowStore::Apply(const StagedRows& staged, const ParallelFor& parallel) {
  LoadInOrder({&staged.columns()}, staged.order(), /*optimizer_slots=*/false, parallel);
  if (Shown().get() == &staged) Show(nullptr);
}

void RowStore::LookupStaged(const IdsByTable& batch, const StagedRows& staged,
                            const ParallelFor& parallel, float* embeddings) {
  (void)Lookup(batch, /*insert=*/false, parallel, embeddings);  // which creates no row
  ReadStaged(batch, staged, parallel, embeddings);
}

void RowStore::ReadStaged(const IdsByTable& batch, const StagedRows& staged,
                          const ParallelFor& parallel, float* embeddings) const {
  if (staged.columns().num_rows == 0) return;
  for (int t = 0; t < num_tables(); ++t) {
    const int64_t first = batch.splits[t];
    parallel(batch.splits[t + 1] - first, 200 + config_.dim, [&](int64_t begin, int64_t end) {
      for (int64_t i = first + begin; i < first + end; ++i) {
        const int64_t id = batch.ids[i];
        const int64_t at = staged.Find(t, PlaceHash(RowHash(salts_[t], id)), id);
        if (at >= 0) ReadRecord(t, staged, at, embeddings + i * config_.dim);
      }
    });
  }
}

void RowStore::ReadRecord(int t, const StagedRows& staged, int64_t at, float* out) const {
  const RowColumns& from = staged.columns();
  if (from.removed[at]) return ReadAbsent(t, from.id[at], out);
  std::copy_n(&from.embedding[at * config_.dim], config_.dim, out);
  RoundInPlace(config_.row_dtype, config_.dim, out);
}

void RowStore::CompareStaged(int table, const StagedRows& staged, const ParallelFor& parallel,
                             bool* differs) const {
  const RecordOrder& order = staged.order();
  const int64_t first_record = staged.RangeOf(table).first;
  parallel(kStripes, 200 * (1 + order.entries.size() / kStripes), [&](int64_t begin, int64_t end) {
    std::vector<float> now(config_.dim), then(config_.dim);
    RowTier::Image image(tier_.get());
    for (int64_t bin = table * kStripes + begin; bin < table * kStripes + end; ++bin) {
      const auto* last = order.entries.data() + order.starts[bin + 1];
      Stripe& stripe = *stripes_[bin];
      const MutexLock lock(&stripe.mutex);
      for (const auto* r = order.entries.data() + order.starts[bin]; r < last; ++r) {
        if (last - r > 2 * kAheadRecords) stripe.PrefetchEntry(r[2 * kAheadRecords].hash);
        if (last - r > kAheadRecords) {
          stripe.PrefetchRow(stripe.PrefetchChunk(r[kAheadRecords].hash));
        }
        const int64_t id = staged.columns().id[r->at];
        const uint32_t number = stripe.Find(r->hash, id);
        if (number == kNone) {
          ReadAbsent(table, id, now.data());
        } else if (const RowHeader* row = ViewRow(static_cast<int>(bin), number, {}, &image)) {
          layout_.ReadEmbedding(*row, now.data());
        }
        ReadRecord(table, staged, r->at, then.data());
        differs[r->at - first_record] =
            std::memcmp(now.data(), then.data(), config_.dim * sizeof(float)) != 0;
      }
    }
  });
}

int64_t RowStore::MarkClean() {
  const MutexLock cut_lock(&cut_mutex_);
  ++last_cut_;
  pending_since_ = last_cut_;
  // In the opposite order of lookups, so a lookup waits at one stripe at most. In the same order it
  // could wait at each of them.
  for (size_t i = stripes_.size(); i-- > 0;) {
    Stripe& s = *stripes_[i];
    const MutexLock lock(&s.mutex);
    s.ForgetTouches();
    for (const int64_t id : s.displaced_by_records.Take()) {
      if (s.Find(s.HashOf(id), id) == kNone) s.open_removed.Append(id);
    }
    if (counters_[i] != nullptr) counters_[i]->ForgetTouches();
  }
  for (const auto& eviction : evictions_) eviction->DisplaceSurplus();
  return last_cut_;
}

void RowStore::Clear() {
  const MutexLock cut_lock(&cut_mutex_);
  for (size_t i = 0; i < stripes_.size(); ++i) {
    Stripe& s = *stripes_[i];
    const MutexLock lock(&s.mutex);
    table_rows_[i / kStripes].fetch_sub(s.live(), std::memory_order_relaxed);
    s.Clear();
    if (counters_[i] != nullptr) counters_[i]->Clear();
  }
  for (const auto& eviction : evictions_) eviction->Reset();
  for (auto& vectors : initial_vectors_) vectors.clear();
  steps_.store(0, std::memory_order_relaxed);
  Show(nullptr);
}

bool RowStore::IsBusy() const {
  return Clock::now().time_since_epoch() - last_use_.load(std::memory_order_relaxed) < kBusy;
}

RowStoreStats RowStore::Stats() const {
  RowStoreStats stats;
  for (const auto& rows : table_rows_) stats.rows.push_back(rows.load(std::memory_order_relaxed));
  stats.table_bytes.resize(config_.tables.size());
  for (size_t i = 0; i < stripes_.size(); ++i) {
    const MutexLock lock(&stripes_[i]->mutex);
    stats.table_bytes[i / kStripes] += stripes_[i]->MemoryBytes();
    if (tier_) stats.table_bytes[i / kStripes] += tier_->HotBytes(static_cast<int>(i));
  }
  const std::vector<AdmissionStats> admission = StatsOfAdmission();
  for (size_t t = 0; t < admission.size(); ++t) stats.table_bytes[t] += admission[t].bytes;
  stats.memory_bytes = pool_->SpareBytes();
  // Each store counts an equal part of what is spare in the server's memory.
  if (config_.tier_memory) stats.memory_bytes /= config_.tier_memory->num_stores();
  if (config_.server_memory) stats.memory_bytes /= config_.server_memory->num_stores();
  for (const int64_t bytes : stats.table_bytes) stats.memory_bytes += bytes;
  stats.memory_bytes += EvictedBytes();
  stats.rejected_inserts = rejected_inserts_.load(std::memory_order_relaxed);
  stats.skipped_updates = skipped_updates_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace embedps
