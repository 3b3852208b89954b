// Ops that move rows between a store and its checkpoint files.
#include <sys/resource.h>

#include <cfenv>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/files/admission_file.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/files/row_file_writer.h"
#include "embedps/kernels/ops/store_resource.h"
#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/throttle.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;
using tensorflow::shape_inference::InferenceContext;

// If training and the writer want the same core, the writer gets a tenth of it.
constexpr int kWriterNiceness = 10;

// Sets the standard floating-point environment in its scope. TensorFlow's threads, and threads that
// they start, treat denormal numbers as zero, but a file must keep them.
class StandardFloats {
 public:
  StandardFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~StandardFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

// An op that works on files. That takes seconds, so it has its own thread and never blocks one that
// lookups need. A thread that writes has a low priority: training gets the cores first.
class FileOp : public AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::thread([this, context, done = std::move(done)] {
      if (niceness_ > 0) ::setpriority(PRIO_PROCESS, 0, niceness_);  // 0 is this thread
      absl::Status status;
      {
        const StandardFloats floats;
        status = Work(context);
      }
      if (!status.ok()) context->SetStatus(status);
      done();
    }).detach();
  }
  virtual absl::Status Work(OpKernelContext* context) = 0;

 protected:
  int niceness_ = 0;
};

// Returns the path of the admission file beside a row file.
std::string AdmissionPath(const std::string& path) {
  const size_t name = path.rfind('/') + 1;
  return path.substr(0, name) + kAdmissionFilePrefix + path.substr(path.find('-', name) + 1);
}

REGISTER_OP("EmbedpsWriteRows")
    .Input("store: resource")
    .Input("path: string")
    .Input("since: int64")
    .Input("max_pause_secs: float")
    .Attr("kind: {'base', 'delta', 'copy'}")
    .Attr("compression: {'none', 'lz4', 'zstd'} = 'none'")
    .Attr("embedding_encoding: string = 'float32'")
    .Attr("optimizer_slot_encoding: string = 'float32'")
    .Output("info: int64")
    .Output("admission_info: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(
        "Writes this shard's rows to a file while training continues: a cut of all rows (base), a "
        "cut of the rows touched and removed since a cut (delta), or all rows without a cut "
        "(copy). While rows are in use it pauses, at most max_pause_secs in total, so it takes a "
        "small share of the cores. Encodings float32 store what memory holds, in its dtypes. info: "
        "cut, bytes, rows, removed, xxh3_64 (as int64), then the xxh3_64 of each block. If tables "
        "count ids for their admission, writes the counters in the same way to the admission file "
        "beside it; else admission_info is empty.");

class WriteRowsOp : public FileOp {
 public:
  explicit WriteRowsOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("kind", &kind_));
    OP_REQUIRES_OK(c, c->GetAttr("compression", &compression_));
    std::string name;
    OP_REQUIRES_OK(c, c->GetAttr("embedding_encoding", &name));
    OP_REQUIRES_OK(c, ToTensorFlow(Parse(name, &embedding_encoding_)));
    OP_REQUIRES_OK(c, c->GetAttr("optimizer_slot_encoding", &name));
    OP_REQUIRES_OK(c, ToTensorFlow(Parse(name, &optimizer_slot_encoding_)));
    niceness_ = kWriterNiceness;
  }
  absl::Status Work(OpKernelContext* context) override {
    StorePtr resource;
    TF_RETURN_IF_ERROR(FindStore(context, &resource));
    tstring path;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "path", &path));
    int64_t since, cut = -1;
    TF_RETURN_IF_ERROR(ReadScalar(context, 2, "since", &since));
    float max_pause_secs;
    TF_RETURN_IF_ERROR(ReadScalar(context, 3, "max_pause_secs", &max_pause_secs));
    RowStore& store = resource->store;
    ThrottleClock clock;
    const auto is_busy = [&store] { return store.IsBusy(); };
    Throttle throttle(Throttle::DefaultCores(), max_pause_secs, is_busy, &clock);
    RowFileSchema schema = store.FileSchema();
    if (embedding_encoding_ != EmbeddingEncoding::kFloat32) {
      schema.embedding_encoding = embedding_encoding_;
    }
    if (optimizer_slot_encoding_ != OptimizerSlotEncoding::kFloat32) {
      schema.optimizer_slot_encoding = optimizer_slot_encoding_;
    }
    std::unique_ptr<RowFileWriter> writer;
    TF_RETURN_IF_ERROR(ToTensorFlow(RowFileWriter::Open(path, schema, compression_, &writer)));
    const auto write = [&](const RowColumns& columns) {
      const Status status = writer->Append(columns);
      throttle.Pause();
      return status;
    };
    std::unique_ptr<AdmissionFileWriter> admission_writer;
    if (store.has_counters()) {
      TF_RETURN_IF_ERROR(ToTensorFlow(
          AdmissionFileWriter::Open(AdmissionPath(path), schema.tables, &admission_writer)));
    }
    const CounterSink write_counters = [&](const CounterColumns& columns) {
      const Status status = admission_writer->Append(columns);
      throttle.Pause();
      return status;
    };
    const CounterSink* counters = admission_writer != nullptr ? &write_counters : nullptr;
    const auto cut_kind = kind_ == "base" ? RowStore::CutKind::kBase : RowStore::CutKind::kDelta;
    if (kind_ == "copy") {
      if (counters != nullptr) TF_RETURN_IF_ERROR(ToTensorFlow(store.CopyCounters(*counters)));
      TF_RETURN_IF_ERROR(ToTensorFlow(store.Copy(write)));
    } else {
      TF_RETURN_IF_ERROR(ToTensorFlow(store.Cut(cut_kind, since, write, &cut, counters)));
    }
    RowFileInfo info;
    if (admission_writer == nullptr) {
      Tensor* none;
      TF_RETURN_IF_ERROR(context->allocate_output(1, {0}, &none));
    } else {
      TF_RETURN_IF_ERROR(ToTensorFlow(admission_writer->Finish(&info)));
      TF_RETURN_IF_ERROR(Output(context, 1, cut, info));
    }
    TF_RETURN_IF_ERROR(ToTensorFlow(writer->Finish(&info)));
    return Output(context, 0, cut, info);
  }

 private:
  static absl::Status Output(OpKernelContext* context, int at, int64_t cut,
                             const RowFileInfo& info) {
    Tensor* out;
    TF_RETURN_IF_ERROR(
        context->allocate_output(at, {5 + static_cast<int64_t>(info.blocks.size())}, &out));
    auto values = out->vec<int64_t>();
    values(0) = cut;
    values(1) = info.bytes;
    values(2) = info.rows;
    values(3) = info.removed;
    values(4) = static_cast<int64_t>(info.xxh3_64);
    for (size_t i = 0; i < info.blocks.size(); ++i) {
      values(5 + i) = static_cast<int64_t>(info.blocks[i]);
    }
    return absl::OkStatus();
  }

  std::string kind_;
  std::string compression_;
  EmbeddingEncoding embedding_encoding_;
  OptimizerSlotEncoding optimizer_slot_encoding_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsWriteRows").Device(tensorflow::DEVICE_CPU), WriteRowsOp);

REGISTER_OP("EmbedpsStopCopies")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Makes the copies that are being written fail.");

class StopCopiesOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) override {
    StorePtr resource;
    OP_REQUIRES_OK(context, FindStore(context, &resource));
    resource->store.StopCopies();
  }
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsStopCopies").Device(tensorflow::DEVICE_CPU), StopCopiesOp);

// Whether a file holds only records of another shard. An id's shard depends on its table's name,
// the id and the number of shards. A file's name tells its shard and their number.
bool IsOfAnotherShard(const std::string& name_format, const std::string& path, int our_shard,
                      int our_num_shards) {
  const std::string name = path.substr(path.rfind('/') + 1);
  int shard = -1, num_shards = 0, length = 0;
  const std::string format = name_format + "%n";
  (void)std::sscanf(name.c_str(), format.c_str(), &shard, &num_shards, &length);
  return length == static_cast<int>(name.size()) && num_shards == our_num_shards &&
         shard != our_shard;
}

// Checks the inputs paths, bytes and xxh3_64, from 1 on.
absl::Status CheckFiles(OpKernelContext* context) {
  const Tensor &paths = context->input(1), &bytes = context->input(2), &sums = context->input(3);
  for (const Tensor* each : {&paths, &bytes, &sums}) {
    if (each->dims() == 1 && each->NumElements() == paths.NumElements()) continue;
    return absl::InvalidArgumentError(
        "paths, bytes and xxh3_64 must be vectors of one length but got shapes " +
        paths.shape().DebugString() + ", " + bytes.shape().DebugString() + " and " +
        sums.shape().DebugString());
  }
  return absl::OkStatus();
}

FileSum ExpectedSum(OpKernelContext* context, int64_t i) {
  return {context->input(2).vec<int64_t>()(i),
          static_cast<uint64_t>(context->input(3).vec<int64_t>()(i))};
}

REGISTER_OP("EmbedpsLoadRows")
    .Input("store: resource")
    .Input("paths: string")
    .Input("bytes: int64")
    .Input("xxh3_64: int64")
    .Attr("shard: int >= 0")
    .Attr("num_shards: int >= 1")
    .Attr("optimizer_slots: bool = true")
    .Output("records: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Loads the records of files that belong to this shard: rows overwrite, removals remove. "
        "Without optimizer_slots it loads only embeddings. records: how many it loaded. If a "
        "file's name says that it belongs to another shard of the same number of shards, it is "
        "not read. Fails with DataLoss if the size or checksum of a file differs; some records of "
        "a long file may be loaded by then.");

class LoadRowsOp : public FileOp {
 public:
  explicit LoadRowsOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("shard", &shard_));
    OP_REQUIRES_OK(c, c->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES_OK(c, c->GetAttr("optimizer_slots", &optimizer_slots_));
    OP_REQUIRES(c, shard_ < num_shards_,
                absl::InvalidArgumentError("shard must be under " + std::to_string(num_shards_) +
                                           " but got " + std::to_string(shard_)));
  }
  absl::Status Work(OpKernelContext* context) override {
    StorePtr resource;
    TF_RETURN_IF_ERROR(FindStore(context, &resource));
    TF_RETURN_IF_ERROR(CheckFiles(context));
    const Tensor& paths = context->input(1);
    const ParallelFor parallel = DeviceThreads(context);
    int64_t records = 0;
    for (int64_t i = 0; i < paths.NumElements(); ++i) {
      const std::string path = paths.vec<tstring>()(i);
      if (IsOfAnotherShard(kShardFileFormat, path, shard_, num_shards_)) continue;
      TF_RETURN_IF_ERROR(Load(path, ExpectedSum(context, i), parallel, &resource->store, &records));
    }
    Tensor* out;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &out));
    out->scalar<int64_t>()() = records;
    return absl::OkStatus();
  }

 private:
  absl::Status Load(const std::string& path, const FileSum& expected, const ParallelFor& parallel,
                    RowStore* store, int64_t* records) const {
    std::unique_ptr<RowFileReader> reader;
    TF_RETURN_IF_ERROR(ToTensorFlow(RowFileReader::Open(path, expected, &reader)));
    std::vector<int> tables;
    TF_RETURN_IF_ERROR(Match(path, reader->schema(), *store, &tables));
    // Read a record batch while the one before is loaded, so neither disk nor processor waits.
    RowColumns columns[2];
    const auto read = [&](int i) {
      return std::async(std::launch::async, [&, i] { return reader->Read(i, &columns[i % 2]); });
    };
    std::future<Status> next;
    if (reader->num_batches() > 0) next = read(0);
    for (int i = 0; i < reader->num_batches(); ++i) {
      TF_RETURN_IF_ERROR(ToTensorFlow(next.get()));
      if (i + 1 < reader->num_batches()) next = read(i + 1);
      *records +=
          store->Load(columns[i % 2], tables, shard_, num_shards_, optimizer_slots_, parallel);
    }
    return ToTensorFlow(reader->Finish());
  }

  absl::Status Match(const std::string& path, const RowFileSchema& file, const RowStore& store,
                     std::vector<int>* tables) const {
    const RowFileSchema ours = store.FileSchema();
    if (file.dim != ours.dim) {
      return absl::FailedPreconditionError(path + " holds rows of dim " + std::to_string(file.dim) +
                                           ", group '" + store.config().group + "' has dim " +
                                           std::to_string(ours.dim));
    }
    bool same = file.optimizer_slots.size() == ours.optimizer_slots.size();
    for (size_t i = 0; same && i < ours.optimizer_slots.size(); ++i) {
      same = file.optimizer_slots[i].name == ours.optimizer_slots[i].name &&
             file.optimizer_slots[i].width == ours.optimizer_slots[i].width;
    }
    if (optimizer_slots_ && !same) {
      return absl::FailedPreconditionError(
          path + " holds the optimizer slots of another optimizer than that of group '" +
          store.config().group + "'");
    }
    for (const std::string& name : file.tables) {
      int found = -1;
      for (int t = 0; t < store.num_tables(); ++t) {
        if (ours.tables[t] == name) found = t;
      }
      tables->push_back(found);
    }
    return absl::OkStatus();
  }

  int shard_, num_shards_;
  bool optimizer_slots_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsLoadRows").Device(tensorflow::DEVICE_CPU), LoadRowsOp);

REGISTER_OP("EmbedpsLoadAdmission")
    .Input("store: resource")
    .Input("paths: string")
    .Input("bytes: int64")
    .Input("xxh3_64: int64")
    .Attr("shard: int >= 0")
    .Attr("num_shards: int >= 1")
    .Output("records: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(
        "Loads the counters that belong to this shard from a chain's admission files, in order, "
        "after its rows. records: how many belong to it. Files of other shards are not read. Fails "
        "with DataLoss if the size or checksum of a file differs.");

class LoadAdmissionOp : public FileOp {
 public:
  explicit LoadAdmissionOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("shard", &shard_));
    OP_REQUIRES_OK(c, c->GetAttr("num_shards", &num_shards_));
  }
  absl::Status Work(OpKernelContext* context) override {
    StorePtr resource;
    TF_RETURN_IF_ERROR(FindStore(context, &resource));
    TF_RETURN_IF_ERROR(CheckFiles(context));
    int64_t records = 0;
    const auto take = [&](const CounterColumns& columns, const std::vector<std::string>& tables) {
      records += resource->store.LoadCounters(columns, tables, shard_, num_shards_);
    };
    const auto paths = context->input(1).vec<tstring>();
    for (int64_t i = 0; i < paths.size(); ++i) {
      if (IsOfAnotherShard(kAdmissionFileFormat, paths(i), shard_, num_shards_)) continue;
      TF_RETURN_IF_ERROR(ToTensorFlow(ReadAdmissionFile(paths(i), ExpectedSum(context, i), take)));
    }
    Tensor* out;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &out));
    out->scalar<int64_t>()() = records;
    return absl::OkStatus();
  }

 private:
  int shard_, num_shards_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsLoadAdmission").Device(tensorflow::DEVICE_CPU),
                        LoadAdmissionOp);

}  // namespace
}  // namespace embedps
