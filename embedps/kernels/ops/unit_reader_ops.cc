// The unit reader as TensorFlow ops. A reader is an anonymous, reference-counted resource. It ends,
// with its thread, when the last tensor with its handle goes: when a unit ends or a step fails.
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/input/unit_reader.h"
#include "embedps/kernels/ops/tf_util.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace embedps {
namespace {

namespace tf = ::tensorflow;

using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

class UnitReaderResource : public tf::ResourceBase {
 public:
  explicit UnitReaderResource(std::unique_ptr<UnitReader> reader) : reader_(std::move(reader)) {}
  std::string DebugString() const override { return "embedps unit reader"; }
  UnitReader& reader() { return *reader_; }

 private:
  const std::unique_ptr<UnitReader> reader_;
};

template <typename T>
absl::Status ScalarInput(tf::OpKernelContext* context, const char* name, T* value) {
  const tf::Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (!tf::TensorShapeUtils::IsScalar(tensor->shape())) {
    return absl::InvalidArgumentError(std::string("EmbedpsUnitReader: ") + name +
                                      " must be a scalar but has shape " +
                                      tensor->shape().DebugString());
  }
  *value = tensor->scalar<T>()();
  return absl::OkStatus();
}

class UnitReaderOp : public tf::OpKernel {
 public:
  explicit UnitReaderOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("numeric_columns", &options_.numeric_columns));
    OP_REQUIRES_OK(context, context->GetAttr("label_columns", &options_.label_columns));
    OP_REQUIRES_OK(context, context->GetAttr("weight_columns", &options_.weight_columns));
    OP_REQUIRES_OK(context, context->GetAttr("float_columns", &options_.float_columns));
    OP_REQUIRES_OK(context, context->GetAttr("id_columns", &options_.id_columns));
    OP_REQUIRES_OK(context, context->GetAttr("integer_columns", &options_.integer_columns));
    OP_REQUIRES_OK(context, context->GetAttr("integer_limits", &options_.integer_limits));
    OP_REQUIRES_OK(context, context->GetAttr("id_list_columns", &options_.id_list_columns));
    OP_REQUIRES_OK(context, context->GetAttr("float_list_columns", &options_.float_list_columns));
    OP_REQUIRES_OK(context, context->GetAttr("batch_rows", &options_.batch_rows));
    OP_REQUIRES_OK(context, context->GetAttr("shuffle_rows", &options_.shuffle_rows));
    OP_REQUIRES_OK(context, context->GetAttr("missing_id", &options_.missing_id));
    OP_REQUIRES_OK(context, context->GetAttr("prefetch_batches", &options_.prefetch_batches));
  }

  void Compute(tf::OpKernelContext* context) override {
    UnitReaderOptions options = options_;
    tf::tstring path;
    int64_t seed;
    OP_REQUIRES_OK(context, ScalarInput(context, "path", &path));
    OP_REQUIRES_OK(context, ScalarInput(context, "first_row", &options.first_row));
    OP_REQUIRES_OK(context, ScalarInput(context, "num_rows", &options.num_rows));
    OP_REQUIRES_OK(context, ScalarInput(context, "seed", &seed));
    options.path = path;
    options.seed = static_cast<uint64_t>(seed);
    std::unique_ptr<UnitReader> reader;
    OP_REQUIRES_OK(context, ToTensorFlow(UnitReader::Open(options, &reader)));
    tf::Tensor* handle;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &handle));
    handle->scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new UnitReaderResource(std::move(reader)), context->device()->name());
  }

 private:
  UnitReaderOptions options_;
};

// Blocks until the next batch is ready. It waits for the reader's own thread, so a full TensorFlow
// thread pool delays it but cannot cause a deadlock.
class UnitReaderNextOp : public tf::OpKernel {
 public:
  explicit UnitReaderNextOp(tf::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_numeric_columns", &num_numeric_columns_));
    OP_REQUIRES_OK(context, context->GetAttr("num_float_columns", &num_float_columns_));
    OP_REQUIRES_OK(context, context->GetAttr("num_integer_columns", &num_integer_columns_));
    OP_REQUIRES_OK(context, context->GetAttr("num_id_list_columns", &num_id_list_columns_));
    OP_REQUIRES_OK(context, context->GetAttr("num_float_list_columns", &num_float_list_columns_));
  }

  void Compute(tf::OpKernelContext* context) override {
    tf::core::RefCountPtr<UnitReaderResource> resource;
    OP_REQUIRES_OK(context,
                   tf::LookupResource(context, tf::HandleFromInput(context, 0), &resource));
    UnitBatch batch;
    OP_REQUIRES_OK(context, ToTensorFlow(resource->reader().Next(&batch)));
    OP_REQUIRES_OK(context, CheckColumns(batch));
    tf::Tensor* num_rows;
    OP_REQUIRES_OK(context, context->allocate_output("num_rows", tf::TensorShape({}), &num_rows));
    num_rows->scalar<int64_t>()() = batch.num_rows;
    tf::Tensor* numerics;
    OP_REQUIRES_OK(context, context->allocate_output(
                                "numerics", tf::TensorShape({batch.num_rows, num_numeric_columns_}),
                                &numerics));
    CopyTo(batch.numerics, numerics);
    OP_REQUIRES_OK(context, Output(context, "floats", batch.floats));
    OP_REQUIRES_OK(context, Output(context, "integers", batch.integers));
    OP_REQUIRES_OK(context, Output(context, "id_list", batch.id_lists));
    OP_REQUIRES_OK(context, Output(context, "float_list", batch.float_lists));
  }

 private:
  absl::Status CheckColumns(const UnitBatch& batch) const {
    const auto check = [](const char* attr, int64_t expected, int64_t found) {
      if (expected == found) return absl::OkStatus();
      return absl::InvalidArgumentError(std::string("EmbedpsUnitReaderNext: ") + attr + " is " +
                                        std::to_string(expected) + " but the reader has " +
                                        std::to_string(found));
    };
    TF_RETURN_IF_ERROR(check("num_float_columns", num_float_columns_, batch.floats.size()));
    TF_RETURN_IF_ERROR(check("num_integer_columns", num_integer_columns_, batch.integers.size()));
    TF_RETURN_IF_ERROR(check("num_id_list_columns", num_id_list_columns_, batch.id_lists.size()));
    TF_RETURN_IF_ERROR(
        check("num_float_list_columns", num_float_list_columns_, batch.float_lists.size()));
    if (batch.num_rows == 0) return absl::OkStatus();
    return check("num_numeric_columns", num_numeric_columns_,
                 batch.numerics.size() / batch.num_rows);
  }

  template <typename T>
  static void CopyTo(const std::vector<T>& values, tf::Tensor* tensor) {
    if (values.empty()) return;
    std::memcpy(tensor->flat<T>().data(), values.data(), values.size() * sizeof(T));
  }

  template <typename T>
  static absl::Status Output(tf::OpOutputList* list, int i, const std::vector<T>& values) {
    tf::Tensor* tensor;
    TF_RETURN_IF_ERROR(
        list->allocate(i, tf::TensorShape({static_cast<int64_t>(values.size())}), &tensor));
    CopyTo(values, tensor);
    return absl::OkStatus();
  }

  // Writes one output per column.
  template <typename T>
  static absl::Status Output(tf::OpKernelContext* context, const char* name,
                             const std::vector<std::vector<T>>& columns) {
    tf::OpOutputList list;
    TF_RETURN_IF_ERROR(context->output_list(name, &list));
    for (size_t i = 0; i < columns.size(); ++i) {
      TF_RETURN_IF_ERROR(Output(&list, static_cast<int>(i), columns[i]));
    }
    return absl::OkStatus();
  }

  // Writes the outputs `name`_values and `name`_splits per column of lists.
  template <typename T>
  static absl::Status Output(tf::OpKernelContext* context, const std::string& name,
                             const std::vector<UnitList<T>>& columns) {
    tf::OpOutputList values, splits;
    TF_RETURN_IF_ERROR(context->output_list(name + "_values", &values));
    TF_RETURN_IF_ERROR(context->output_list(name + "_splits", &splits));
    for (size_t i = 0; i < columns.size(); ++i) {
      TF_RETURN_IF_ERROR(Output(&values, static_cast<int>(i), columns[i].values));
      TF_RETURN_IF_ERROR(Output(&splits, static_cast<int>(i), columns[i].row_splits));
    }
    return absl::OkStatus();
  }

  int num_numeric_columns_;
  int num_float_columns_;
  int num_integer_columns_;
  int num_id_list_columns_;
  int num_float_list_columns_;
};

class UnitReaderLiveCountOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* count;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &count));
    count->scalar<int64_t>()() = UnitReader::num_live();
  }
};

class ProcessIdOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(tf::OpKernelContext* context) override {
    tf::Tensor* id;
    OP_REQUIRES_OK(context, context->allocate_output(0, tf::TensorShape({}), &id));
    id->scalar<int64_t>()() = ::getpid();
  }
};

absl::Status ScalarShapes(InferenceContext* context) {
  ShapeHandle unused;
  for (int i = 0; i < context->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 0, &unused));
  }
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

absl::Status NextShapes(InferenceContext* context) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 0, &unused));
  int64_t num_numeric_columns;
  TF_RETURN_IF_ERROR(context->GetAttr("num_numeric_columns", &num_numeric_columns));
  const auto unknown = InferenceContext::kUnknownDim;
  context->set_output(0, context->Scalar());
  context->set_output(1, context->Matrix(unknown, num_numeric_columns));
  for (int i = 2; i < context->num_outputs(); ++i) {
    context->set_output(i, context->Vector(unknown));
  }
  return absl::OkStatus();
}

REGISTER_OP("EmbedpsUnitReader")
    .Input("path: string")
    .Input("first_row: int64")
    .Input("num_rows: int64")
    .Input("seed: int64")
    .Output("reader: resource")
    .Attr("numeric_columns: list(string) = []")
    .Attr("label_columns: list(string) = []")
    .Attr("weight_columns: list(string) = []")
    .Attr("float_columns: list(string) = []")
    .Attr("id_columns: list(string) = []")
    .Attr("integer_columns: list(string) = []")
    .Attr("integer_limits: list(int) = []")
    .Attr("id_list_columns: list(string) = []")
    .Attr("float_list_columns: list(string) = []")
    .Attr("batch_rows: int >= 1")
    .Attr("shuffle_rows: int >= 0 = 0")
    .Attr("missing_id: int = -1")
    .Attr("prefetch_batches: int >= 1 = 4")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc("Opens rows of a Parquet file as batches; see embedps/kernels/input/unit_reader.h.");

REGISTER_OP("EmbedpsUnitReaderNext")
    .Input("reader: resource")
    .Output("num_rows: int64")
    .Output("numerics: float32")
    .Output("floats: num_float_columns * float32")
    .Output("integers: num_integer_columns * int64")
    .Output("id_list_values: num_id_list_columns * int64")
    .Output("id_list_splits: num_id_list_columns * int64")
    .Output("float_list_values: num_float_list_columns * float32")
    .Output("float_list_splits: num_float_list_columns * int64")
    .Attr("num_numeric_columns: int >= 0")
    .Attr("num_float_columns: int >= 0")
    .Attr("num_integer_columns: int >= 0")
    .Attr("num_id_list_columns: int >= 0")
    .Attr("num_float_list_columns: int >= 0")
    .SetIsStateful()
    .SetShapeFn(NextShapes)
    .Doc("Returns the reader's next batch. num_rows is 0 at the end of the unit.");

REGISTER_OP("EmbedpsUnitReaderLiveCount")
    .Output("count: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc("Counts the open unit readers of the process that runs this op.");

REGISTER_OP("EmbedpsProcessId")
    .Output("process_id: int64")
    .SetIsStateful()
    .SetShapeFn(ScalarShapes)
    .Doc("Returns the id of the process that runs this op.");

EMBEDPS_KERNEL(UnitReader);
EMBEDPS_KERNEL(UnitReaderNext);
EMBEDPS_KERNEL(UnitReaderLiveCount);
EMBEDPS_KERNEL(ProcessId);

}  // namespace
}  // namespace embedps
