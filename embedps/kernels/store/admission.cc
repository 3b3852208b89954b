#include "embedps/kernels/store/admission.h"

#include <algorithm>
#include <utility>

#include "embedps/kernels/runtime/hash.h"
#include "embedps/kernels/store/row_store.h"

namespace embedps {
namespace {

constexpr int64_t kBatchCounters = 32768;

IdHashes Of(const StripeOrder::Entry& e) { return {e.row_hash, e.hash}; }

// Prefetches the counters of a stripe's entries in order.
class CounterPrefetch {
 public:
  using Entry = StripeOrder::Entry;
  // `counters` may be null. Begins with the directory; what the caller does next hides its wait.
  CounterPrefetch(const CounterMap* counters, const Entry* first, const Entry* last)
      : counters_(counters), first_(first), last_(last) {
    if (counters_ == nullptr) return;
    for (const Entry* e = first; e < std::min(last, first + kDirectories); ++e) {
      counters_->PrefetchDirectory(e->row_hash);
    }
  }
  // Prefetches the first counters.
  void Begin() const {
    if (counters_ == nullptr) return;
    for (const Entry* e = first_; e < std::min(last_, first_ + kPages); ++e) {
      counters_->PrefetchPage(e->row_hash);
    }
    for (const Entry* e = first_; e < std::min(last_, first_ + kEntries); ++e) {
      counters_->PrefetchEntry(Of(*e));
    }
  }
  // Continues with the counters after that of `e`, which comes next.
  void Next(const Entry* e) const {
    if (counters_ == nullptr) return;
    if (last_ - e > kDirectories) counters_->PrefetchDirectory(e[kDirectories].row_hash);
    if (last_ - e > kPages) counters_->PrefetchPage(e[kPages].row_hash);
    if (last_ - e > kEntries) counters_->PrefetchEntry(Of(e[kEntries]));
  }

 private:
  static constexpr int kEntries = 8, kPages = 16, kDirectories = 24;

  const CounterMap* const counters_;
  const Entry* const first_;
  const Entry* const last_;
};

// Collects records of counters in batches and gives them to a sink.
class OutgoingCounters {
 public:
  explicit OutgoingCounters(const CounterSink& sink) : sink_(sink) {}

  // Appends the counters of a page, in the order of their ids: their order in the page is secret.
  void Append(int table, std::vector<CounterRecord>* page) {
    std::sort(page->begin(), page->end(),
              [](const CounterRecord& a, const CounterRecord& b) { return a.id < b.id; });
    for (const CounterRecord& counter : *page) Append(table, counter);
    page->clear();
    if (columns_.num_records >= kBatchCounters) (void)Flush();
  }

  // After a failure it returns that failure and gives nothing more.
  Status Flush() {
    if (columns_.num_records > 0 && status_.ok()) status_ = sink_(columns_);
    columns_.table.clear();
    columns_.id.clear();
    columns_.count.clear();
    columns_.last_step.clear();
    columns_.removed.clear();
    columns_.num_records = 0;
    return status_;
  }

 private:
  void Append(int table, const CounterRecord& counter) {
    columns_.table.push_back(static_cast<int16_t>(table));
    columns_.id.push_back(counter.id);
    columns_.count.push_back(counter.count);
    columns_.last_step.push_back(counter.last_step);
    columns_.removed.push_back(counter.count == 0);
    ++columns_.num_records;
  }

  const CounterSink& sink_;
  CounterColumns columns_;
  Status status_;
};

}  // namespace

void RowStore::MakeCounters() {
  for (size_t t = 0; t < config_.tables.size(); ++t) {
    const AdmissionConfig& admission = config_.tables[t].admission;
    const bool counts = admission.counts();
    budgets_.push_back(counts
                           ? std::make_unique<CounterBudget>(
                                 TableEviction::CounterBytes(config_.tables[t].eviction, admission),
                                 config_.server_memory.get())
                           : nullptr);
    for (int k = 0; k < kStripes; ++k) {
      counters_.push_back(counts ? std::make_unique<CounterMap>(salts_[t], admission.expire_steps,
                                                                budgets_[t].get())
                                 : nullptr);
      if (counts) budgets_[t]->Charge(sizeof(CounterMap));
    }
  }
}

bool RowStore::has_admission() const {
  return std::any_of(config_.tables.begin(), config_.tables.end(), HasAdmission);
}

bool RowStore::has_counters() const {
  return std::any_of(counters_.begin(), counters_.end(),
                     [](const auto& counters) { return counters != nullptr; });
}

void RowStore::PrefetchBin(int bin) const {
  if (bin < 0) return;
  const auto fetch = [](const auto* object) {
    const char* from = reinterpret_cast<const char*>(object);
    for (size_t byte = 0; byte < sizeof(*object); byte += 64) __builtin_prefetch(from + byte, 1);
  };
  fetch(stripes_[bin].get());
  if (counters_[bin] != nullptr) fetch(counters_[bin].get());
}

void RowStore::ReadShown(int bin, const IdsByTable& batch,
                         const std::vector<StripeOrder::Entry>& absent, const ShownIds& shown,
                         const NewVectors& vectors, float* embeddings) const {
  const int t = bin / kStripes;
  const int64_t max_rows = config_.tables[t].max_rows;
  const bool is_full = max_rows > 0 && table_rows_[t].load(std::memory_order_relaxed) >= max_rows;
  const CounterPrefetch prefetch(counters_[bin].get(), absent.data(),
                                 absent.data() + absent.size());
  prefetch.Begin();
  for (const StripeOrder::Entry& e : absent) {
    prefetch.Next(&e);
    const int64_t id = batch.ids[e.at];
    float* out = embeddings + int64_t{e.at} * config_.dim;
    shown.absent[e.at] = 1;
    const bool is_new = !is_full && Admits(bin, Of(e), id, shown.examples[e.at], shown.step);
    if (!is_new || !InitialEmbedding(t, id, vectors, out)) ReadAbsent(t, id, out);
  }
}

bool RowStore::Admits(int bin, IdHashes hashes, int64_t id, int32_t examples, uint32_t step) const {
  const int t = bin / kStripes;
  const TableConfig& table = config_.tables[t];
  if (!table.admission.counts()) {
    return AdmitsUncounted(table.admission, table.seed, salts_[t], id, step, examples);
  }
  return counters_[bin]->Count(hashes, id, step) + static_cast<uint32_t>(examples) >=
         table.admission.min_count;
}

bool RowStore::CountShown(int bin, IdHashes hashes, int64_t id, int32_t examples, uint32_t step) {
  CounterMap* counters = counters_[bin].get();
  if (counters == nullptr) return Admits(bin, hashes, id, examples, step);
  return counters->Show(hashes, id, static_cast<uint32_t>(examples),
                        config_.tables[bin / kStripes].admission.min_count, step);
}

Status RowStore::ComputeNew(const IdsByTable& batch, const StripeOrder& order,
                            const ShownIds* shown, NewVectors* vectors) {
  if (!has_functions_) return Status::Ok();
  std::vector<std::vector<int64_t>> absent(num_tables());
  order.ForEachBin(
      SerialFor, 1, [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
        const int t = bin / kStripes;
        if (config_.tables[t].initializer.kind != InitializerConfig::Kind::kFunction) return;
        const bool admits = HasAdmission(config_.tables[t]);
        Stripe& stripe = *stripes_[bin];
        const MutexLock lock(&stripe.mutex);
        RowFinder finder(stripe, arena_.get(), first, last);
        for (const auto* e = first; e < last; ++e) {
          const int64_t id = batch.ids[e->at];
          if (finder.Next(e, id) != kNone) continue;
          const bool is_new =
              !admits ||
              (shown != nullptr && Admits(bin, Of(*e), id, shown->examples[e->at], shown->step));
          if (is_new) absent[t].push_back(id);
        }
      });
  for (int t = 0; t < num_tables(); ++t) {
    if (absent[t].empty()) continue;
    EMBEDPS_RETURN_IF_ERROR(vectors->Compute(t, config_.tables[t].initializer.function,
                                             std::move(absent[t]), config_.dim));
  }
  return Status::Ok();
}

Status RowStore::Admit(const IdsByTable& batch, const ShownIds& shown,
                       const ParallelFor& parallel) {
  std::vector<int64_t> ids;
  std::vector<int32_t> splits = {0}, examples;
  const int64_t num_absent = std::count(shown.absent, shown.absent + batch.num_ids, 1);
  ids.reserve(num_absent);
  examples.reserve(num_absent);
  for (int t = 0; t < num_tables(); ++t) {
    for (int32_t i = batch.splits[t]; i < batch.splits[t + 1]; ++i) {
      if (!shown.absent[i]) continue;
      ids.push_back(batch.ids[i]);
      examples.push_back(shown.examples[i]);
    }
    splits.push_back(static_cast<int32_t>(ids.size()));
  }
  const IdsByTable absent{ids.data(), static_cast<int64_t>(ids.size()), splits.data()};
  const StripeOrder order(absent, salts_, parallel);
  const ShownIds of_absent{examples.data(), shown.step, nullptr};
  NewVectors vectors;
  EMBEDPS_RETURN_IF_ERROR(ComputeNew(absent, order, &of_absent, &vectors));
  order.ForEachBin(parallel, 200,
                   [&](int bin, const StripeOrder::Entry* first, const StripeOrder::Entry* last) {
                     const int t = bin / kStripes;
                     Stripe& stripe = *stripes_[bin];
                     CounterMap* counters = counters_[bin].get();
                     int64_t admitted = 0, refused = 0;
                     const MutexLock lock(&stripe.mutex);
                     const TableEviction::Visit visit(evictions_[t].get(), &stripe);
                     PrefetchBin(last->bin);
                     const CounterPrefetch prefetch(counters, first, last);
                     RowFinder finder(stripe, arena_.get(), first, last);
                     prefetch.Begin();
                     for (const auto* e = first; e < last; ++e) {
                       prefetch.Next(e);
                       const int64_t id = ids[e->at];
                       if (finder.Next(e, id) != kNone)
                         continue;  // another step admitted it meanwhile
                       if (!CountShown(bin, Of(*e), id, examples[e->at], shown.step)) {
                         ++refused;
                       } else if (InsertRow(bin, e->hash, id, vectors, &stripe) != kNone) {
                         if (counters != nullptr) counters->Erase(Of(*e), id);
                         ++admitted;
                       }
                     }
                     admitted_[t].fetch_add(admitted, std::memory_order_relaxed);
                     refused_[t].fetch_add(refused, std::memory_order_relaxed);
                   });
  return Status::Ok();
}

Status RowStore::CutCounters(CutKind kind, bool drop_pending, uint32_t number,
                             const CounterSink& sink) {
  OutgoingCounters outgoing(sink);
  const bool all = kind == CutKind::kBase;
  std::vector<CounterRecord> page;
  const CounterMap::Visit append = [&page](const CounterRecord& c) { page.push_back(c); };
  for (size_t bin = 0; bin < counters_.size(); ++bin) {
    CounterMap* counters = counters_[bin].get();
    if (counters == nullptr) continue;
    for (size_t at = 0;;) {
      {
        const MutexLock lock(&stripes_[bin]->mutex);
        if (!counters->NextPage(number, drop_pending, all, &at, append)) break;
      }
      outgoing.Append(static_cast<int>(bin) / kStripes, &page);
    }
  }
  return outgoing.Flush();
}

Status RowStore::CopyCounters(const CounterSink& sink) const {
  OutgoingCounters outgoing(sink);
  std::vector<CounterRecord> page;
  const CounterMap::Visit append = [&page](const CounterRecord& c) { page.push_back(c); };
  for (size_t bin = 0; bin < counters_.size(); ++bin) {
    if (counters_[bin] == nullptr) continue;
    for (size_t at = 0;;) {
      {
        const MutexLock lock(&stripes_[bin]->mutex);
        if (!counters_[bin]->CopyPage(&at, append)) break;
      }
      outgoing.Append(static_cast<int>(bin) / kStripes, &page);
    }
  }
  return outgoing.Flush();
}

int64_t RowStore::LoadCounters(const CounterColumns& columns,
                               const std::vector<std::string>& tables, int shard, int num_shards) {
  std::vector<uint64_t> salts;
  std::vector<int> ours;
  for (const std::string& name : tables) {
    salts.push_back(TableSalt(name));
    int found = -1;
    for (int t = 0; t < num_tables(); ++t) {
      if (config_.tables[t].name == name) found = t;
    }
    ours.push_back(found);
  }
  int64_t taken = 0;
  for (int64_t i = 0; i < columns.num_records; ++i) {
    const int64_t id = columns.id[i];
    const IdHashes hashes = HashesOf(salts[columns.table[i]], id);
    if (ShardOf(hashes.row, num_shards) != shard) continue;
    ++taken;
    const int t = ours[columns.table[i]];
    if (t < 0) continue;
    const int bin = t * kStripes + StripeOf(hashes.row);
    CounterMap* counters = counters_[bin].get();
    if (counters == nullptr) continue;  // the table has another policy by now
    const MutexLock lock(&stripes_[bin]->mutex);
    if (columns.removed[i]) {
      counters->Load(hashes, {id, 0, 0});
    } else if (stripes_[bin]->Find(hashes.place, id) != kNone) {
      // The id was admitted between the copies of its counter and of its row. The next delta says
      // that the counter is gone.
      counters->Load(hashes, {id, columns.count[i], columns.last_step[i]});
      counters->Erase(hashes, id);
    } else {
      counters->Load(hashes, {id, columns.count[i], columns.last_step[i]});
    }
  }
  return taken;
}

std::vector<AdmissionStats> RowStore::StatsOfAdmission() const {
  std::vector<AdmissionStats> stats(config_.tables.size());
  for (size_t bin = 0; bin < counters_.size(); ++bin) {
    AdmissionStats& table = stats[bin / kStripes];
    if (counters_[bin] == nullptr) continue;
    const MutexLock lock(&stripes_[bin]->mutex);
    table.counters += counters_[bin]->size();
    table.bytes += counters_[bin]->MemoryBytes();
  }
  for (size_t t = 0; t < stats.size(); ++t) {
    stats[t].admitted = admitted_[t].load(std::memory_order_relaxed);
    stats[t].refused = refused_[t].load(std::memory_order_relaxed);
  }
  return stats;
}

}  // namespace embedps
