// The ops that move rows between a store and its checkpoint files.
#include <sys/resource.h>

#include <cfenv>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/files/row_file_writer.h"
#include "embedps/kernels/ops/store_resource.h"
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

// Of ten parts of a core that both want, the writer gets one.
constexpr int kWriterNiceness = 10;

// The standard floating-point environment: TensorFlow's threads, and what they start, take numbers
// under the least normal one for zero, but a file's are to be what was written.
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

// File work takes seconds: it has a thread of its own, so that it never holds one that lookups
// need. A thread that writes is nice: training has the cores before it, and it what they leave.
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

REGISTER_OP("EmbedpsWriteRows")
    .Input("store: resource")
    .Input("path: string")
    .Input("since: int64")
    .Input("rest_secs: float")
    .Attr("kind: {'base', 'delta', 'copy'}")
    .Attr("compression: {'none', 'lz4', 'zstd'} = 'none'")
    .Attr("rows: {'float32', 'int8', 'int4'} = 'float32'")
    .Attr("slots: {'float32', 'bfloat16'} = 'float32'")
    .Output("info: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc(
        "Cuts this shard's rows and writes them to a file while training goes on: all (base), or "
        "those touched and removed since a cut (delta); or writes all beside such cuts, and is "
        "none (copy). While rows are used it rests, rest_secs at most in all, so that it takes a "
        "small share of the cores. info: cut, bytes, rows, removed, xxh3_64 (as int64), then the "
        "xxh3_64 of each block.");

class WriteRowsOp : public FileOp {
 public:
  explicit WriteRowsOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("kind", &kind_));
    OP_REQUIRES_OK(c, c->GetAttr("compression", &compression_));
    std::string rows, slots;
    OP_REQUIRES_OK(c, c->GetAttr("rows", &rows));
    OP_REQUIRES_OK(c, c->GetAttr("slots", &slots));
    OP_REQUIRES_OK(c, ToTensorFlow(Parse(rows, &rows_)));
    OP_REQUIRES_OK(c, ToTensorFlow(Parse(slots, &slots_)));
    niceness_ = kWriterNiceness;
  }
  absl::Status Work(OpKernelContext* context) override {
    StorePtr resource;
    TF_RETURN_IF_ERROR(FindStore(context, &resource));
    tstring path;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "path", &path));
    int64_t since, cut = -1;
    TF_RETURN_IF_ERROR(ReadScalar(context, 2, "since", &since));
    float rest_secs;
    TF_RETURN_IF_ERROR(ReadScalar(context, 3, "rest_secs", &rest_secs));
    RowStore& store = resource->store;
    PaceClock clock;
    Pace pace(Pace::DefaultCores(), rest_secs, [&store] { return store.IsBusy(); }, &clock);
    RowFileSchema schema = store.FileSchema();
    schema.rows = rows_;
    schema.slots = slots_;
    std::unique_ptr<RowFileWriter> writer;
    TF_RETURN_IF_ERROR(ToTensorFlow(RowFileWriter::Open(path, schema, compression_, &writer)));
    const auto write = [&](const RowColumns& columns) {
      const Status status = writer->Append(columns);
      pace.Rest();
      return status;
    };
    const auto cut_kind = kind_ == "base" ? RowStore::CutKind::kBase : RowStore::CutKind::kDelta;
    TF_RETURN_IF_ERROR(ToTensorFlow(kind_ == "copy" ? store.Copy(write)
                                                    : store.Cut(cut_kind, since, write, &cut)));
    RowFileInfo info;
    TF_RETURN_IF_ERROR(ToTensorFlow(writer->Finish(&info)));
    Tensor* out;
    TF_RETURN_IF_ERROR(
        context->allocate_output(0, {5 + static_cast<int64_t>(info.blocks.size())}, &out));
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

 private:
  std::string kind_;
  std::string compression_;
  RowEncoding rows_;
  SlotEncoding slots_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsWriteRows").Device(tensorflow::DEVICE_CPU), WriteRowsOp);

REGISTER_OP("EmbedpsStopCopies")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Ends the copies that are being written, as failures.");

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
        "Takes the records of files that belong to this shard: rows overwrite, removals remove. "
        "Without optimizer_slots only embeddings are taken. Says how many records were taken. "
        "A file of one shard of as many is read by that shard alone. Fails with DataLoss where the "
        "size or checksum of a file that is read is not what was written; records of a long file "
        "may have been taken by then.");

class LoadRowsOp : public FileOp {
 public:
  explicit LoadRowsOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("shard", &shard_));
    OP_REQUIRES_OK(c, c->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES_OK(c, c->GetAttr("optimizer_slots", &slots_));
    OP_REQUIRES(c, shard_ < num_shards_,
                absl::InvalidArgumentError("shard must be under " + std::to_string(num_shards_) +
                                           " but got " + std::to_string(shard_)));
  }
  absl::Status Work(OpKernelContext* context) override {
    StorePtr resource;
    TF_RETURN_IF_ERROR(FindStore(context, &resource));
    const Tensor &paths = context->input(1), &bytes = context->input(2), &sums = context->input(3);
    for (const Tensor* each : {&paths, &bytes, &sums}) {
      if (each->dims() == 1 && each->NumElements() == paths.NumElements()) continue;
      return absl::InvalidArgumentError(
          "paths, bytes and xxh3_64 must be vectors of one length but got shapes " +
          paths.shape().DebugString() + ", " + bytes.shape().DebugString() + " and " +
          sums.shape().DebugString());
    }
    const ParallelFor parallel = DeviceThreads(context);
    int64_t records = 0;
    for (int64_t i = 0; i < paths.NumElements(); ++i) {
      const std::string path = paths.vec<tstring>()(i);
      if (IsOfAnotherShard(path)) continue;
      const FileSum expected{bytes.vec<int64_t>()(i),
                             static_cast<uint64_t>(sums.vec<int64_t>()(i))};
      TF_RETURN_IF_ERROR(Load(path, expected, parallel, &resource->store, &records));
    }
    Tensor* out;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &out));
    out->scalar<int64_t>()() = records;
    return absl::OkStatus();
  }

 private:
  // A row's shard follows from its table's name, its id and the number of shards; and a file's
  // name says of which it is.
  bool IsOfAnotherShard(const std::string& path) const {
    const std::string name = path.substr(path.rfind('/') + 1);
    int shard = -1, num_shards = 0, length = 0;
    (void)std::sscanf(name.c_str(), "shard-%d-of-%d.arrow%n", &shard, &num_shards, &length);
    return length == static_cast<int>(name.size()) && num_shards == num_shards_ && shard != shard_;
  }

  absl::Status Load(const std::string& path, const FileSum& expected, const ParallelFor& parallel,
                    RowStore* store, int64_t* records) const {
    std::unique_ptr<RowFileReader> reader;
    TF_RETURN_IF_ERROR(ToTensorFlow(RowFileReader::Open(path, expected, &reader)));
    std::vector<int> tables;
    TF_RETURN_IF_ERROR(Match(path, reader->schema(), *store, &tables));
    // One record batch is read while the one before it is taken: neither the disk waits for the
    // processor nor this for the disk.
    RowColumns columns[2];
    const auto read = [&](int i) {
      return std::async(std::launch::async, [&, i] { return reader->Read(i, &columns[i % 2]); });
    };
    std::future<Status> next;
    if (reader->num_batches() > 0) next = read(0);
    for (int i = 0; i < reader->num_batches(); ++i) {
      TF_RETURN_IF_ERROR(ToTensorFlow(next.get()));
      if (i + 1 < reader->num_batches()) next = read(i + 1);
      *records += store->Load(columns[i % 2], tables, shard_, num_shards_, slots_, parallel);
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
    if (slots_ && !same) {
      return absl::FailedPreconditionError(
          path + " holds the slots of another optimizer than group '" + store.config().group + "'");
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
  bool slots_;
};
REGISTER_KERNEL_BUILDER(Name("EmbedpsLoadRows").Device(tensorflow::DEVICE_CPU), LoadRowsOp);

}  // namespace
}  // namespace embedps
