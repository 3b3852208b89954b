// Ops that load a store's rows from checkpoint files.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/files/admission_file.h"
#include "embedps/kernels/files/mapped_vectors.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/ops/file_op.h"
#include "embedps/kernels/ops/staged_resource.h"
#include "embedps/kernels/ops/store_resource.h"
#include "embedps/kernels/runtime/constants.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::tstring;
using tensorflow::shape_inference::InferenceContext;

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

// Checks that a file's rows fit a store. Sets the store's index of each table of the file, or -1.
absl::Status MatchTables(const std::string& path, const RowFileSchema& file, const RowStore& store,
                         bool optimizer_slots, std::vector<int>* tables) {
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
  if (optimizer_slots && !same) {
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

// Batches of a file's records that are loaded together.
struct Window {
  std::vector<const RowColumns*> batches;
  std::vector<int> tables;         // as RowStore::Load takes it
  std::deque<RowColumns> columns;  // do not move; some may be left of a larger window before
};

// An op that reads the row files of its inputs paths, bytes and xxh3_64, from 1 on.
class RowReaderOp : public FileOp {
 public:
  explicit RowReaderOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("shard", &shard_));
    OP_REQUIRES_OK(c, c->GetAttr("num_shards", &num_shards_));
    OP_REQUIRES(c, shard_ < num_shards_,
                absl::InvalidArgumentError("shard must be under " + std::to_string(num_shards_) +
                                           " but got " + std::to_string(shard_)));
  }

 protected:
  // Calls take(batches, tables) for some batches of a file after the other, in the order of the
  // files. Some of the records may be another shard's. `tables` is as RowStore::Load takes it.
  template <typename Take>
  absl::Status ReadFiles(OpKernelContext* context, const RowStore& store, bool optimizer_slots,
                         const Take& take) const {
    TF_RETURN_IF_ERROR(CheckFiles(context));
    Files files(store, optimizer_slots);
    for (int64_t i = 0; i < context->input(1).NumElements(); ++i) {
      const std::string path = context->input(1).vec<tstring>()(i);
      if (IsOfAnotherShard(kShardFileFormat, path, shard_, num_shards_)) continue;
      files.Add(path, ExpectedSum(context, i));
    }
    // Read a window while the one before is loaded, so neither disk nor processor waits.
    Window windows[2];
    const auto read = [&files](Window* window) {
      return std::async(std::launch::async, [&files, window] { return files.Read(window); });
    };
    std::future<absl::Status> next = read(&windows[0]);
    for (int i = 0;; i = 1 - i) {
      TF_RETURN_IF_ERROR(next.get());
      if (windows[i].batches.empty()) return absl::OkStatus();
      next = read(&windows[1 - i]);
      take(windows[i].batches, windows[i].tables);
    }
  }

  int shard_, num_shards_;

 private:
  // Reads the batches of files in order.
  class Files {
   public:
    Files(const RowStore& store, bool optimizer_slots)
        : store_(store), optimizer_slots_(optimizer_slots) {}

    void Add(std::string path, const FileSum& expected) {
      // Some stripes at once, of the 64 by which a file is ordered.
      bytes_ = std::clamp(bytes_ + expected.bytes / 16, kMinWindowBytes, kMaxWindowBytes);
      files_.emplace_back(std::move(path), expected);
    }

    // Reads the next batches, of one file; none at the end.
    absl::Status Read(Window* window) {
      window->batches.clear();
      for (int64_t bytes = 0; bytes < bytes_;) {
        // A table with a limit chooses among the rows of the files before.
        if (!window->batches.empty() && batch_ == reader_->num_batches()) break;
        TF_RETURN_IF_ERROR(ToNextBatch());
        if (reader_ == nullptr) break;
        const size_t n = window->batches.size();
        if (n == window->columns.size()) window->columns.emplace_back();
        RowColumns* columns = &window->columns[n];
        TF_RETURN_IF_ERROR(ToTensorFlow(reader_->Read(batch_++, columns)));
        window->batches.push_back(columns);
        size_t floats = columns->embedding.size();
        for (const std::vector<float>& slots : columns->optimizer_slots) floats += slots.size();
        bytes += static_cast<int64_t>(sizeof(float) * floats) + kRowBytes * columns->num_rows;
      }
      window->tables = tables_;
      return absl::OkStatus();
    }

   private:
    static constexpr int64_t kMinWindowBytes = 4 << 20, kMaxWindowBytes = 64 << 20;
    static constexpr int64_t kRowBytes = 19;  // of what each record has besides floats

    // Opens the next file if this one is at its end; there is no reader after the last.
    absl::Status ToNextBatch() {
      while (reader_ == nullptr || batch_ == reader_->num_batches()) {
        if (reader_ != nullptr) TF_RETURN_IF_ERROR(ToTensorFlow(reader_->Finish()));
        reader_ = nullptr;
        if (at_ == files_.size()) return absl::OkStatus();
        const auto& [path, expected] = files_[at_++];
        TF_RETURN_IF_ERROR(ToTensorFlow(RowFileReader::Open(path, expected, &reader_)));
        tables_.clear();
        TF_RETURN_IF_ERROR(
            MatchTables(path, reader_->schema(), store_, optimizer_slots_, &tables_));
        batch_ = 0;
      }
      return absl::OkStatus();
    }

    const RowStore& store_;
    const bool optimizer_slots_;
    int64_t bytes_ = kMinWindowBytes;  // of a window
    std::vector<std::pair<std::string, FileSum>> files_;
    size_t at_ = 0;  // the next file
    std::unique_ptr<RowFileReader> reader_;
    std::vector<int> tables_;  // of its file
    int batch_ = 0;
  };
};

class LoadRowsOp : public RowReaderOp {
 public:
  explicit LoadRowsOp(OpKernelConstruction* c) : RowReaderOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("optimizer_slots", &optimizer_slots_));
  }
  absl::Status Work(OpKernelContext* context, RowStore* store) override {
    const ParallelFor parallel = DeviceThreads(context);
    int64_t records = 0;
    TF_RETURN_IF_ERROR(
        ReadFiles(context, *store, optimizer_slots_, [&](const auto& batches, const auto& tables) {
          records += store->Load(batches, tables, shard_, num_shards_, optimizer_slots_, parallel);
        }));
    return OutputScalar(context, 0, records);
  }

 private:
  bool optimizer_slots_;
};
EMBEDPS_KERNEL(LoadRows);

REGISTER_OP("EmbedpsStageRows")
    .Input("store: resource")
    .Input("paths: string")
    .Input("bytes: int64")
    .Input("xxh3_64: int64")
    .Attr("shard: int >= 0")
    .Attr("num_shards: int >= 1")
    .Output("staged: resource")
    .Output("records: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(
        "Reads, checks, decodes and orders what EmbedpsLoadRows would load without optimizer "
        "slots, and changes nothing. EmbedpsApplyRows takes `staged`, which lives as long as its "
        "tensor, and has the last record of each id. records: how many the files have.");

class StageRowsOp : public RowReaderOp {
 public:
  explicit StageRowsOp(OpKernelConstruction* c) : RowReaderOp(c) { niceness_ = kFileNiceness; }
  absl::Status Work(OpKernelContext* context, RowStore* store) override {
    const tensorflow::core::RefCountPtr<StagedResource> staged(
        new StagedResource(store->Stage(shard_, num_shards_)));
    int64_t records = 0;
    TF_RETURN_IF_ERROR(ReadFiles(context, *store, /*optimizer_slots=*/false,
                                 [&](const auto& batches, const auto& tables) {
                                   for (const RowColumns* columns : batches) {
                                     records += staged->rows.Add(*columns, tables);
                                   }
                                 }));
    staged->rows.Finish();
    Tensor* handle;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &handle));
    staged->Ref();  // the handle's own
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(staged.get(), context->device()->name());
    return OutputScalar(context, 1, records);
  }
};
EMBEDPS_KERNEL(StageRows);

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
  absl::Status Work(OpKernelContext* context, RowStore* store) override {
    TF_RETURN_IF_ERROR(CheckFiles(context));
    int64_t records = 0;
    const auto take = [&](const CounterColumns& columns, const std::vector<std::string>& tables) {
      records += store->LoadCounters(columns, tables, shard_, num_shards_);
    };
    const auto paths = context->input(1).vec<tstring>();
    for (int64_t i = 0; i < paths.size(); ++i) {
      if (IsOfAnotherShard(kAdmissionFileFormat, paths(i), shard_, num_shards_)) continue;
      TF_RETURN_IF_ERROR(ToTensorFlow(ReadAdmissionFile(paths(i), ExpectedSum(context, i), take)));
    }
    return OutputScalar(context, 0, records);
  }

 private:
  int shard_, num_shards_;
};
EMBEDPS_KERNEL(LoadAdmission);

REGISTER_OP("EmbedpsLoadVectors")
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
        "Has new rows begin with the vectors of row files, where these have the id; the last file "
        "that has it counts. Maps the files, which must stay as they are. records: how many belong "
        "to this shard. Fails with DataLoss if the size or checksum of a file differs.");

class LoadVectorsOp : public FileOp {
 public:
  explicit LoadVectorsOp(OpKernelConstruction* c) : FileOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("shard", &shard_));
    OP_REQUIRES_OK(c, c->GetAttr("num_shards", &num_shards_));
  }
  absl::Status Work(OpKernelContext* context, RowStore* store) override {
    TF_RETURN_IF_ERROR(CheckFiles(context));
    int64_t records = 0;
    const auto paths = context->input(1).vec<tstring>();
    for (int64_t i = 0; i < paths.size(); ++i) {
      std::unique_ptr<MappedVectors> file;
      TF_RETURN_IF_ERROR(
          ToTensorFlow(MappedVectors::Open(paths(i), ExpectedSum(context, i), &file)));
      std::vector<int> tables;
      TF_RETURN_IF_ERROR(
          MatchTables(paths(i), file->schema(), *store, /*optimizer_slots=*/false, &tables));
      for (size_t from = 0; from < tables.size(); ++from) {
        const int t = tables[from];
        if (t < 0) continue;
        const auto is_ours = [&](int64_t id) {
          return store->IsOfShard(t, id, shard_, num_shards_);
        };
        store->AddInitialVectors(t, file->OfTable(static_cast<int>(from), is_ours, &records));
      }
    }
    return OutputScalar(context, 0, records);
  }

 private:
  int shard_, num_shards_;
};
EMBEDPS_KERNEL(LoadVectors);

}  // namespace
}  // namespace embedps
