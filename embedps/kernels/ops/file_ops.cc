// Ops that write a store's rows to checkpoint files.
#include <memory>
#include <string>

#include "embedps/kernels/files/admission_file.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_writer.h"
#include "embedps/kernels/ops/file_op.h"
#include "embedps/kernels/ops/store_op.h"
#include "embedps/kernels/runtime/constants.h"
#include "embedps/kernels/runtime/throttle.h"
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
    niceness_ = kFileNiceness;
  }
  absl::Status Work(OpKernelContext* context, RowStore* store) override {
    tstring path;
    TF_RETURN_IF_ERROR(ReadScalar(context, 1, "path", &path));
    int64_t since, cut = -1;
    TF_RETURN_IF_ERROR(ReadScalar(context, 2, "since", &since));
    float max_pause_secs;
    TF_RETURN_IF_ERROR(ReadScalar(context, 3, "max_pause_secs", &max_pause_secs));
    ThrottleClock clock;
    const auto is_busy = [store] { return store->IsBusy(); };
    Throttle throttle(Throttle::DefaultCores(), max_pause_secs, is_busy, &clock);
    RowFileSchema schema = store->FileSchema();
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
    if (store->has_counters()) {
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
      if (counters != nullptr) TF_RETURN_IF_ERROR(ToTensorFlow(store->CopyCounters(*counters)));
      TF_RETURN_IF_ERROR(ToTensorFlow(store->Copy(write)));
    } else {
      TF_RETURN_IF_ERROR(ToTensorFlow(store->Cut(cut_kind, since, write, &cut, counters)));
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
EMBEDPS_KERNEL(WriteRows);

REGISTER_OP("EmbedpsStopCopies")
    .Input("store: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc("Makes the copies that are being written fail.");

class StopCopiesOp : public StoreOp {
 public:
  using StoreOp::StoreOp;
  absl::Status Run(OpKernelContext* context, RowStore* store) override {
    store->StopCopies();
    return absl::OkStatus();
  }
};
EMBEDPS_KERNEL(StopCopies);

}  // namespace
}  // namespace embedps
