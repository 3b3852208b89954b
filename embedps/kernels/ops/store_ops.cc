// Ops that run on a parameter server, where the rows are: those of a step, and those that create
// and drop stores.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/ops/store_resource.h"
#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/names.h"
#include "embedps/kernels/runtime/settings.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

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
    .Output("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Finds or creates the rows of one group on this device. optimizer and table_settings are "
        "lines of Settings.");

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
    bool keeps_evicted = false;
    OP_REQUIRES_OK(c, c->GetAttr("keeps_evicted", &keeps_evicted));
    if (keeps_evicted) config_.open_evicted_file = OpenEvictedFile;
    OP_REQUIRES_OK(c, c->GetAttr("sweeps_itself", &config_.sweeps_itself));
    OP_REQUIRES_OK(c, ReadTables(c));
  }

  void Compute(OpKernelContext* context) override {
    RowStoreConfig config = config_;
    if (max_server_bytes_ > 0) OP_REQUIRES_OK(context, FindServerMemory(context, &config));
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
  RowStoreConfig config_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsRowStore").Device(tensorflow::DEVICE_CPU), RowStoreOp);

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
REGISTER_KERNEL_BUILDER(Name("EmbedpsDropStores").Device(tensorflow::DEVICE_CPU), DropStoresOp);

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

class LookupOp : public OpKernel {
 public:
  explicit LookupOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("insert", &insert_));
    OP_REQUIRES_OK(c, c->GetAttr("dim", &dim_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    IdsByTable batch;
    float* rows;
    OP_REQUIRES_OK(context, BeginLookup(context, 1, resource->store, dim_, &batch, &rows));
    resource->store.Lookup(batch, insert_, DeviceThreads(context), rows);
  }

 private:
  bool insert_;
  int dim_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsLookup").Device(tensorflow::DEVICE_CPU), LookupOp);

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

class UpdateRatesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    IdsByTable batch;
    OP_REQUIRES_OK(context, ReadBatch(context, 1, resource->store, &batch));
    Tensor* rates;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch.num_ids}, &rates));
    resource->store.UpdateRates(batch, DeviceThreads(context), rates->flat<float>().data());
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsUpdateRates").Device(tensorflow::DEVICE_CPU), UpdateRatesOp);

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

class UpdateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    RowStore& store = resource->store;
    IdsByTable batch;
    OP_REQUIRES_OK(context, ReadBatch(context, 1, store, &batch));
    const Tensor& gradients = context->input(3);
    OP_REQUIRES(context, gradients.shape() == TensorShape({batch.num_ids, store.config().dim}),
                absl::InvalidArgumentError(
                    "group '" + store.config().group + "': gradients must be [" +
                    std::to_string(batch.num_ids) + ", " + std::to_string(store.config().dim) +
                    "] but got " + gradients.shape().DebugString()));
    float learning_rate = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 4, "learning_rate", &learning_rate));
    const bool divides = store.config().optimizer.divides_by_learning_rate();
    OP_REQUIRES(
        context, std::isfinite(learning_rate) && (divides ? learning_rate > 0 : learning_rate >= 0),
        absl::InvalidArgumentError(
            "group '" + store.config().group + "': learning_rate must be finite and " +
            (divides ? "above 0" : "at least 0") + " but got " + std::to_string(learning_rate)));
    int64_t step = 0;
    OP_REQUIRES_OK(context, ReadScalar(context, 5, "step", &step));
    OP_REQUIRES_OK(context, CheckStep(step));
    bool is_new = false;
    OP_REQUIRES_OK(context, ReadScalar(context, 6, "is_new", &is_new));
    if (!is_new) return;
    store.Update(batch, gradients.flat<float>().data(), learning_rate, static_cast<uint32_t>(step),
                 DeviceThreads(context));
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsUpdate").Device(tensorflow::DEVICE_CPU), UpdateOp);

REGISTER_OP("EmbedpsRemove")
    .Input("store: resource")
    .Input("ids: int64")
    .Attr("table: int >= 0")
    .Output("removed: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Removes rows of one table by id. removed: how many existed.");

class RemoveOp : public OpKernel {
 public:
  explicit RemoveOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("table", &table_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    OP_REQUIRES_OK(context, CheckTable(resource->store, table_));
    Tensor* removed;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &removed));
    const auto ids = context->input(1).flat<int64_t>();
    removed->scalar<int64_t>()() = resource->store.Remove(table_, ids.data(), ids.size());
  }

 private:
  int table_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsRemove").Device(tensorflow::DEVICE_CPU), RemoveOp);

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

class EvictOp : public OpKernel {
 public:
  explicit EvictOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("table", &table_));
  }
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    OP_REQUIRES_OK(context, CheckTable(resource->store, table_));
    int64_t step, max_frequency;
    OP_REQUIRES_OK(context, ReadScalar(context, 1, "step", &step));
    OP_REQUIRES_OK(context, ReadScalar(context, 2, "max_frequency", &max_frequency));
    OP_REQUIRES(
        context,
        step >= 0 && step <= UINT32_MAX && max_frequency >= 0 && max_frequency <= UINT32_MAX,
        absl::InvalidArgumentError("step and max_frequency must be in [0, 2^32) but got " +
                                   std::to_string(step) + " and " + std::to_string(max_frequency)));
    Tensor* removed;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &removed));
    removed->scalar<int64_t>()() = resource->store.Evict(table_, static_cast<uint32_t>(step),
                                                         static_cast<uint32_t>(max_frequency));
  }

 private:
  int table_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsEvict").Device(tensorflow::DEVICE_CPU), EvictOp);

REGISTER_OP("EmbedpsMarkClean")
    .Input("store: resource")
    .Output("cut: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Forgets which rows were touched. cut: the next delta is since this cut.");

class MarkCleanOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    Tensor* cut;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &cut));
    cut->scalar<int64_t>()() = resource->store.MarkClean();
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsMarkClean").Device(tensorflow::DEVICE_CPU), MarkCleanOp);

REGISTER_OP("EmbedpsClear")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Removes every row.");

class ClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    resource->store.Clear();
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsClear").Device(tensorflow::DEVICE_CPU), ClearOp);

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

class StatsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    const RowStoreStats stats = resource->store.Stats();
    const int64_t num_tables = static_cast<int64_t>(stats.rows.size());
    Tensor *rows, *bytes, *counters;
    OP_REQUIRES_OK(context, context->allocate_output(0, {num_tables}, &rows));
    OP_REQUIRES_OK(context, context->allocate_output(1, {num_tables}, &bytes));
    OP_REQUIRES_OK(context, context->allocate_output(2, {3}, &counters));
    std::copy_n(stats.rows.data(), num_tables, rows->vec<int64_t>().data());
    std::copy_n(stats.table_bytes.data(), num_tables, bytes->vec<int64_t>().data());
    counters->vec<int64_t>()(0) = stats.memory_bytes;
    counters->vec<int64_t>()(1) = stats.rejected_inserts;
    counters->vec<int64_t>()(2) = stats.skipped_updates;
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsStats").Device(tensorflow::DEVICE_CPU), StatsOp);

}  // namespace
}  // namespace embedps
