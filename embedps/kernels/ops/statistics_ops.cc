// Ops that tell what tables hold and how they are used, while training goes on.
#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/ops/store_op.h"
#include "embedps/kernels/runtime/process_memory.h"
#include "embedps/kernels/runtime/throttle.h"
#include "embedps/kernels/store/table_scan.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("EmbedpsTableUse")
    .Input("store: resource")
    .Output("lookups: int64")
    .Output("batches: int64")
    .Output("process: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Scalar());
      c->set_output(2, c->Vector(2));
      return absl::OkStatus();
    })
    .Doc(
        "Counts training lookups. lookups: distinct ids of all batches, of each table. process: "
        "resident bytes, and the bytes that are left for the process, or -1.");

class TableUseOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    const LookupCounts& counts = store->lookup_counts();
    const int num_tables = store->num_tables();
    Tensor *lookups, *batches, *process;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_tables}, &lookups));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {}, &batches));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {2}, &process));
    for (int t = 0; t < num_tables; ++t) lookups->vec<int64_t>()(t) = counts.ids(t);
    batches->scalar<int64_t>()() = counts.batches();
    const ProcessMemory memory = ReadProcessMemory();
    process->vec<int64_t>()(0) = memory.resident_bytes;
    process->vec<int64_t>()(1) = memory.available_bytes;
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(TableUse);

REGISTER_OP("EmbedpsTierStats")
    .Input("store: resource")
    .Output("rows_on_disk: int64")
    .Output("counts: int64")
    .Output("error: string")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(7));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(
        "Counts the rows on disk, of each table. counts: bytes of the spill files; rows that were "
        "written, and of them those that compaction moved; rows that were read, by how many calls, "
        "and how many of them alone; rows that went because the disk was full. error: why it is.");

class TierStatsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    RowTier::Stats stats;
    stats.rows_on_disk.resize(store->num_tables());
    if (store->tier() != nullptr) stats = store->tier()->stats();
    Tensor *rows, *counts;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {store->num_tables()}, &rows));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {7}, &counts));
    std::copy(stats.rows_on_disk.begin(), stats.rows_on_disk.end(), rows->vec<int64_t>().data());
    const int64_t all[] = {stats.log.bytes, stats.log.appended,   stats.log.moved,
                           stats.log.read,  stats.log.disk_reads, stats.late_reads,
                           stats.evicted};
    std::copy(std::begin(all), std::end(all), counts->vec<int64_t>().data());
    return OutputScalar<tensorflow::tstring>(context, 2, stats.log.error);
  }
};
EMBEDPS_KERNEL(TierStats);

// Rests between slices of work so that this thread takes a small share of the cores while training
// uses the rows. It is no Throttle: these share a budget, of which saves would have less.
class ScanPace {
 public:
  explicit ScanPace(const RowStore& store) : store_(store) {}

  void Rest() {
    const double owed = clock_.ThreadSecs() / Cores() - (clock_.Now() - began_);
    if (owed < kShortestSleepSecs) return;
    for (double left = owed; left > 0 && store_.IsBusy(); left -= kShortestSleepSecs) {
      clock_.Sleep(std::min(left, kShortestSleepSecs));
    }
  }

 private:
  static constexpr double kShareOfCores = 0.005;
  static constexpr double kShortestSleepSecs = 0.02;  // shorter ones would cost as much as the work
  static double Cores() {
    static const unsigned cores = std::thread::hardware_concurrency();
    return kShareOfCores * std::max(1u, cores);
  }

  const RowStore& store_;
  ThrottleClock clock_;
  const double began_ = clock_.Now();
};

REGISTER_OP("EmbedpsScanTables")
    .Input("store: resource")
    .Output("totals: int64")
    .Output("frequencies: int64")
    .Output("frequency_values: double")
    .Output("norms: int64")
    .Output("norm_values: double")
    .Output("hottest: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      const auto unknown = InferenceContext::kUnknownDim;
      c->set_output(0, c->Matrix(unknown, 2));
      c->set_output(1, c->Matrix(unknown, LogBins::kNumBins));
      c->set_output(2, c->Vector(LogBins::kNumBins));
      c->set_output(3, c->Matrix(unknown, LogBins::kNumBins));
      c->set_output(4, c->Vector(LogBins::kNumBins));
      c->set_output(5, c->Matrix(unknown, 3));
      return absl::OkStatus();
    })
    .Doc(
        "Walks over all rows while training goes on; it rests often, so it takes a small share of "
        "the cores. totals: each table's rows and their updates. frequencies, norms: how many rows "
        "of each table, or every 16th row, have a value in each bin. hottest: table, id and "
        "updates of the 1000 most frequent ids of each table.");

class ScanTablesOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::thread([this, context, done = std::move(done)] {
      ::setpriority(PRIO_PROCESS, 0, kNiceness);  // 0 is this thread
      const absl::Status status = Scan(context);
      if (!status.ok()) context->SetStatus(status);
      done();
    }).detach();
  }

 private:
  static constexpr int kNiceness = 10;  // as the threads that write checkpoints

  absl::Status Scan(OpKernelContext* context) {
    StorePtr resource;
    TF_RETURN_IF_ERROR(FindStore(context, &resource));
    const RowStore& store = resource->store;
    ScanPace pace(store);
    std::vector<TableScan> scans;
    int64_t num_hottest = 0;
    for (int t = 0; t < store.num_tables(); ++t) {
      scans.push_back(store.Scan(t, [&pace] { pace.Rest(); }));
      num_hottest += static_cast<int64_t>(scans.back().hottest.size());
    }
    Tensor *totals, *hottest;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {store.num_tables(), 2}, &totals));
    TF_RETURN_IF_ERROR(context->allocate_output(5, {num_hottest, 3}, &hottest));
    auto ids = hottest->matrix<int64_t>();
    int64_t at = 0;
    for (int t = 0; t < store.num_tables(); ++t) {
      totals->matrix<int64_t>()(t, 0) = scans[t].rows;
      totals->matrix<int64_t>()(t, 1) = scans[t].updates;
      for (const TableScan::HotId& hot : scans[t].hottest) {
        ids(at, 0) = t;
        ids(at, 1) = hot.id;
        ids(at, 2) = hot.frequency;
        ++at;
      }
    }
    TF_RETURN_IF_ERROR(WriteBins(context, 1, scans, &TableScan::frequencies));
    return WriteBins(context, 3, scans, &TableScan::norms);
  }

  // Writes the counts of each table's bins as output `at`, and the bins' values as the next one.
  static absl::Status WriteBins(OpKernelContext* context, int at,
                                const std::vector<TableScan>& scans, LogBins TableScan::* bins) {
    Tensor *counts, *values;
    const auto num_tables = static_cast<int64_t>(scans.size());
    TF_RETURN_IF_ERROR(context->allocate_output(at, {num_tables, LogBins::kNumBins}, &counts));
    TF_RETURN_IF_ERROR(context->allocate_output(at + 1, {LogBins::kNumBins}, &values));
    for (int64_t t = 0; t < num_tables; ++t) {
      const std::vector<int64_t>& from = (scans[t].*bins).counts();
      std::copy(from.begin(), from.end(), &counts->matrix<int64_t>()(t, 0));
    }
    for (int i = 0; i < LogBins::kNumBins; ++i) {
      values->vec<double>()(i) = (scans[0].*bins).Value(i);
    }
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(ScanTables);

REGISTER_OP("EmbedpsRowIds")
    .Input("store: resource")
    .Attr("table: int >= 0")
    .Output("ids: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Lists the ids of a table's rows, in no order.");

class RowIdsOp : public TableOp {
 public:
  using TableOp::TableOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    const std::vector<int64_t> ids = store->Ids(table_);
    Tensor* out;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {static_cast<int64_t>(ids.size())}, &out));
    std::copy(ids.begin(), ids.end(), out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(RowIds);

}  // namespace
}  // namespace embedps
