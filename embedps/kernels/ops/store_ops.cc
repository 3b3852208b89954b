// Ops that run on a parameter server, where the rows are: those of a step, and those that create
// and drop stores.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/ops/store_op.h"
#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/names.h"
#include "embedps/kernels/runtime/settings.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

extern "C" __attribute__((visibility("default"))) void embedps_set_vector_function(
    embedps::VectorFunction function) {
  embedps::SetVectorFunction(function);
}

namespace embedps {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("EmbedpsRowStore")
    .Attr("container: string")
    .Attr("shared_name: string")
    .Attr("group: string")
    .Attr("dim: int >= 1")
    .Attr("row_dtype: string = 'float32'")
    .Attr("slot_dtype: string = 'float32'")
    .Attr("optimizer: string")
    .Attr("tables: list(string) >= 1")
    .Attr("table_settings: list(string)")
    .Attr("sweeps_itself: bool = true")
    .Attr("compact: bool = false")
    .Attr("server_memory: string = ''")
    .Attr("max_server_bytes: int = 0")
    .Attr("keeps_evicted: bool = false")
    .Attr("max_memory_bytes: int = 0")
    .Attr("spill_dir: string = ''")
    .Attr("tier_chunk_slots: int >= 0 = 0")
    .Output("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Finds or creates the rows of one group on this device. optimizer and table_settings are "
        "lines of Settings. tier_chunk_slots is for tests of few rows: chunks of floats have so "
        "many "
        "slots, spill files a few pages, and max_memory_bytes has no least value.");

class RowStoreOp : public OpKernel {
 public:
  explicit RowStoreOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("container", &container_));
    OP_REQUIRES_OK(c, c->GetAttr("shared_name", &name_));
    OP_REQUIRES_OK(c, c->GetAttr("group", &config_.group));
    OP_REQUIRES_OK(c, c->GetAttr("dim", &config_.dim));
    std::string dtype, optimizer;
    OP_REQUIRES_OK(c, c->GetAttr("row_dtype", &dtype));
    OP_REQUIRES_OK(c, ToTensorFlow(ParseName("row_dtype", kRowDtypes, dtype, &config_.row_dtype)));
    OP_REQUIRES_OK(c, c->GetAttr("slot_dtype", &dtype));
    OP_REQUIRES_OK(
        c, ToTensorFlow(ParseName("slot_dtype", kOptimizerSlotDtypes, dtype, &config_.slot_dtype)));
    OP_REQUIRES_OK(c, c->GetAttr("optimizer", &optimizer));
    Settings of_optimizer("group '" + config_.group + "': ", optimizer);
    config_.optimizer.Read(&of_optimizer);
    OP_REQUIRES_OK(c, ToTensorFlow(of_optimizer.Check()));
    OP_REQUIRES_OK(c, c->GetAttr("compact", &config_.compact));
    OP_REQUIRES_OK(c, c->GetAttr("server_memory", &server_memory_));
    OP_REQUIRES_OK(c, c->GetAttr("max_server_bytes", &max_server_bytes_));
    OP_REQUIRES_OK(c, c->GetAttr("max_memory_bytes", &tier_.max_memory_bytes));
    OP_REQUIRES_OK(c, c->GetAttr("spill_dir", &tier_.directory));
    int chunk_slots;
    OP_REQUIRES_OK(c, c->GetAttr("tier_chunk_slots", &chunk_slots));
    if (chunk_slots > 0) {
      tier_.chunk_slots = static_cast<uint32_t>(chunk_slots);
      tier_.buffer_bytes = 4 << 10;
      tier_.segment_bytes = 8 << 10;
    }
    OP_REQUIRES(c, max_server_bytes_ == 0 || tier_.max_memory_bytes == 0,
                absl::InvalidArgumentError("group '" + config_.group +
                                           "': max_server_bytes and max_memory_bytes exclude each "
                                           "other"));
    bool keeps_evicted = false;
    OP_REQUIRES_OK(c, c->GetAttr("keeps_evicted", &keeps_evicted));
    if (keeps_evicted) config_.open_evicted_file = OpenEvictedFile;
    OP_REQUIRES_OK(c, c->GetAttr("sweeps_itself", &config_.sweeps_itself));
    OP_REQUIRES_OK(c, ReadTables(c));
  }

  void Compute(OpKernelContext* context) override {
    RowStoreConfig config = config_;
    if (max_server_bytes_ > 0) OP_REQUIRES_OK(context, FindServerMemory(context, &config));
    if (tier_.max_memory_bytes > 0) OP_REQUIRES_OK(context, FindTierMemory(context, &config));
    OP_REQUIRES_OK(context, FindOrCreate<StoreResource>(context, container_, name_, [&config] {
                     return new StoreResource(std::move(config));
                   }));
  }

 private:
  // Finds or makes the memory that the server's stores share. The one of a collection that other
  // stores came before must have room for this one.
  absl::Status FindServerMemory(OpKernelContext* context, RowStoreConfig* config) {
    ServerMemoryResource* found = nullptr;
    TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<ServerMemoryResource>(
        container_, server_memory_, &found, [this](ServerMemoryResource** created) {
          *created = new ServerMemoryResource(max_server_bytes_);
          return absl::OkStatus();
        }));
    const tensorflow::core::RefCountPtr<ServerMemoryResource> release(found);
    config->server_memory = found->memory;
    int64_t least = 0;
    for (const TableConfig& table : config->tables) {
      least += TableEviction::LeastServerBytes(LayoutOf(*config), table.admission,
                                               EvictedBytesPerTable(*config));
    }
    const int64_t taken = found->memory->charged_bytes();
    if (taken + least <= max_server_bytes_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "group '" + config->group + "': max_server_bytes must be at least " +
        std::to_string(taken + least) + " for the tables up to here but is " +
        std::to_string(max_server_bytes_));
  }

  // The same of the memory that they share beside a disk.
  absl::Status FindTierMemory(OpKernelContext* context, RowStoreConfig* config) {
    TF_RETURN_IF_ERROR(ToTensorFlow(SpillLog::CheckDirectory(tier_.directory)));
    TierMemoryResource* found = nullptr;
    TF_RETURN_IF_ERROR(context->resource_manager()->LookupOrCreate<TierMemoryResource>(
        container_, server_memory_ + "/tier", &found, [this](TierMemoryResource** created) {
          *created = new TierMemoryResource(tier_);
          return absl::OkStatus();
        }));
    const tensorflow::core::RefCountPtr<TierMemoryResource> release(found);
    config->tier_memory = found->memory;
    const int64_t least = found->memory->AddLeast(
        RowTier::LeastBytes(LayoutOf(*config), static_cast<int>(config->tables.size()), tier_));
    if (least <= tier_.max_memory_bytes || tier_.chunk_slots > 0) return absl::OkStatus();
    return absl::InvalidArgumentError("group '" + config->group +
                                      "': max_memory_bytes must be at least " +
                                      std::to_string(least) + " for the tables up to here but is " +
                                      std::to_string(tier_.max_memory_bytes));
  }

  // Reads the tables, each with the settings of all its kinds.
  absl::Status ReadTables(OpKernelConstruction* c) {
    std::vector<std::string> names, settings;
    TF_RETURN_IF_ERROR(c->GetAttr("tables", &names));
    TF_RETURN_IF_ERROR(c->GetAttr("table_settings", &settings));
    const size_t n = names.size();
    if (settings.size() != n || n > INT16_MAX) {
      return absl::InvalidArgumentError(
          "group '" + config_.group + "': table_settings must be as many as the " +
          std::to_string(n) + " tables, of which there may be " + std::to_string(INT16_MAX));
    }
    config_.tables.resize(n);  // before LeastBytes, which depends on their number
    const RowLayout layout = LayoutOf(config_);
    for (size_t t = 0; t < n; ++t) {
      TableConfig& table = config_.tables[t];
      table.name = names[t];
      Settings of_table("table '" + table.name + "': ", settings[t]);
      of_table.Number("seed", INT64_MIN, INT64_MAX, &table.seed);
      of_table.Number("max_rows", 0, INT64_MAX, &table.max_rows);
      of_table.Flag("absent_reads_initial", &table.absent_reads_initial);
      table.initializer.Read(&of_table);
      table.admission.Read(&of_table);
      table.eviction.Read(&of_table);
      TF_RETURN_IF_ERROR(ToTensorFlow(of_table.Check()));
      const int64_t max_bytes = table.eviction.max_bytes;
      const int64_t least_bytes =
          TableEviction::LeastBytes(layout, table.admission, EvictedBytesPerTable(config_));
      if (max_bytes > 0 && max_bytes < least_bytes) {
        return absl::InvalidArgumentError(
            "table '" + table.name + "': max_bytes must be at least " +
            std::to_string(least_bytes) + " per parameter server but is " +
            std::to_string(max_bytes));
      }
    }
    return absl::OkStatus();
  }

  static Status OpenEvictedFile(const std::string& path, const RowFileSchema& schema,
                                std::unique_ptr<EvictedFileWriter>* writer) {
    return EvictedFileWriter::Open(
        path, schema, {std::begin(kEvictionCauses), std::end(kEvictionCauses)}, writer);
  }

  std::string container_, name_, server_memory_;
  int64_t max_server_bytes_ = 0;
  TierConfig tier_;
  RowStoreConfig config_;
};
EMBEDPS_KERNEL(RowStore);

REGISTER_OP("EmbedpsDropStores")
    .Attr("container: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Removes every store and log of a container from this device.");

class DropStoresOp : public OpKernel {
 public:
  explicit DropStoresOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("container", &container_));
  }
  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, context->resource_manager()->Cleanup(container_));
  }

 private:
  std::string container_;
};
EMBEDPS_KERNEL(DropStores);

REGISTER_OP("EmbedpsLookup")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .Attr("dim: int >= 1")
    .Attr("insert: bool")
    .Output("rows: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) { return SetRowsShape(c, 1); })
    .Doc("Reads rows. Creates absent rows if insert; else they read as their table declares.");

class LookupOp : public StoreOp {
 public:
  explicit LookupOp(OpKernelConstruction* c) : StoreOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("insert", &insert_));
    OP_REQUIRES_OK(c, c->GetAttr("dim", &dim_));
  }
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    IdsByTable batch;
    float* rows;
    TF_RETURN_IF_ERROR(BeginLookup(context, 1, *store, dim_, &batch, &rows));
    return ToTensorFlow(store->Lookup(batch, insert_, DeviceThreads(context), rows));
  }

 private:
  bool insert_;
  int dim_;
};
EMBEDPS_KERNEL(Lookup);

REGISTER_OP("EmbedpsUpdateRates")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .Output("rates: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle ids;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ids));
      c->set_output(0, ids);
      return absl::OkStatus();
    })
    .Doc("Estimates of each id the share of steps that update its row.");

class UpdateRatesOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    IdsByTable batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, 1, *store, &batch));
    Tensor* rates;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {batch.num_ids}, &rates));
    store->UpdateRates(batch, DeviceThreads(context), rates->flat<float>().data());
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(UpdateRates);

REGISTER_OP("EmbedpsReadAhead")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Begins to bring rows into memory that are on disk, and returns.");

class ReadAheadOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    IdsByTable batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, 1, *store, &batch));
    store->ReadAhead(batch);
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(ReadAhead);

REGISTER_OP("EmbedpsUpdate")
    .Input("store: resource")
    .Input("ids: int64")
    .Input("splits: int32")
    .Input("gradients: float")
    .Input("learning_rate: float")
    .Input("step: int64")
    .Input("is_new: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Applies summed gradients to the rows that exist, if the step is new.");

class UpdateOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    IdsByTable batch;
    TF_RETURN_IF_ERROR(ReadBatch(context, 1, *store, &batch));
    const Tensor& gradients = context->input(3);
    if (gradients.shape() != TensorShape({batch.num_ids, store->config().dim})) {
      return absl::InvalidArgumentError("group '" + store->config().group +
                                        "': gradients must be [" + std::to_string(batch.num_ids) +
                                        ", " + std::to_string(store->config().dim) + "] but got " +
                                        gradients.shape().DebugString());
    }
    float learning_rate = 0;
    TF_RETURN_IF_ERROR(ReadScalar(context, 4, "learning_rate", &learning_rate));
    const bool divides = store->config().optimizer.divides_by_learning_rate();
    if (!(std::isfinite(learning_rate) && (divides ? learning_rate > 0 : learning_rate >= 0))) {
      return absl::InvalidArgumentError(
          "group '" + store->config().group + "': learning_rate must be finite and " +
          (divides ? "above 0" : "at least 0") + " but got " + std::to_string(learning_rate));
    }
    int64_t step = 0;
    TF_RETURN_IF_ERROR(ReadScalar(context, 5, "step", &step));
    TF_RETURN_IF_ERROR(CheckStep(step));
    bool is_new = false;
    TF_RETURN_IF_ERROR(ReadScalar(context, 6, "is_new", &is_new));
    if (!is_new) return absl::OkStatus();
    store->Update(batch, gradients.flat<float>().data(), learning_rate, static_cast<uint32_t>(step),
                  DeviceThreads(context));
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(Update);

REGISTER_OP("EmbedpsRemove")
    .Input("store: resource")
    .Input("ids: int64")
    .Attr("table: int >= 0")
    .Output("removed: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Removes rows of one table by id. removed: how many existed.");

class RemoveOp : public TableOp {
 public:
  using TableOp::TableOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    const auto ids = context->input(1).flat<int64_t>();
    return OutputScalar(context, 0, store->Remove(table_, ids.data(), ids.size()));
  }
};
EMBEDPS_KERNEL(Remove);

REGISTER_OP("EmbedpsEvict")
    .Input("store: resource")
    .Input("step: int64")
    .Input("max_frequency: int64")
    .Attr("table: int >= 0")
    .Output("removed: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Removes a table's rows last updated before step and with fewer updates than "
        "max_frequency.");

class EvictOp : public TableOp {
 public:
  using TableOp::TableOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    int64_t step, max_frequency;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "step", &step));
    TF_RETURN_IF_ERROR(ReadScalar(context, 2, "max_frequency", &max_frequency));
    if (step < 0 || step > UINT32_MAX || max_frequency < 0 || max_frequency > UINT32_MAX) {
      return absl::InvalidArgumentError("step and max_frequency must be in [0, 2^32) but got " +
                                        std::to_string(step) + " and " +
                                        std::to_string(max_frequency));
    }
    return OutputScalar<int64_t>(
        context, 0,
        store->Evict(table_, static_cast<uint32_t>(step), static_cast<uint32_t>(max_frequency)));
  }
};
EMBEDPS_KERNEL(Evict);

REGISTER_OP("EmbedpsMarkClean")
    .Input("store: resource")
    .Output("cut: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Forgets which rows were touched. cut: the next delta is since this cut.");

class MarkCleanOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    return OutputScalar(context, 0, store->MarkClean());
  }
};
EMBEDPS_KERNEL(MarkClean);

REGISTER_OP("EmbedpsClear")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Removes every row.");

class ClearOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    store->Clear();
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(Clear);

REGISTER_OP("EmbedpsStats")
    .Input("store: resource")
    .Output("rows: int64")
    .Output("table_bytes: int64")
    .Output("counters: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(2, c->Vector(3));
      return absl::OkStatus();
    })
    .Doc(
        "Counts each table's rows and bytes. counters: memory_bytes, rejected_inserts, "
        "skipped_updates.");

class StatsOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    const RowStoreStats stats = store->Stats();
    const int64_t num_tables = static_cast<int64_t>(stats.rows.size());
    Tensor *rows, *bytes, *counters;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {num_tables}, &rows));
    TF_RETURN_IF_ERROR(context->allocate_output(1, {num_tables}, &bytes));
    TF_RETURN_IF_ERROR(context->allocate_output(2, {3}, &counters));
    std::copy_n(stats.rows.data(), num_tables, rows->vec<int64_t>().data());
    std::copy_n(stats.table_bytes.data(), num_tables, bytes->vec<int64_t>().data());
    counters->vec<int64_t>()(0) = stats.memory_bytes;
    counters->vec<int64_t>()(1) = stats.rejected_inserts;
    counters->vec<int64_t>()(2) = stats.skipped_updates;
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(Stats);

}  // namespace
}  // namespace embedps
