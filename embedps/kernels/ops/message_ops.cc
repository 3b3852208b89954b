// Packs several tensors into one message. A step sends one message per direction to another task,
// as each tensor between tasks costs both of them an RPC.
//
// A message begins with a header of little-endian int64 numbers: the number of parts, then for each
// part its dtype, rank and dimensions. The parts' bytes follow, each part at a multiple of 64, so a
// part can be used in place.
#include <cstring>
#include <string>
#include <vector>

#include "embedps/kernels/ops/tf_util.h"
#include "embedps/kernels/runtime/bf16.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace embedps {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

constexpr int64_t kAlignment = 64;
constexpr int64_t kMaxRank = 8;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Whether a part may be sent as another dtype: a float32 may be sent as bfloat16.
bool CanBeSentAs(DataType type, DataType wire_type) {
  return type == wire_type ||
         (type == tensorflow::DT_FLOAT && wire_type == tensorflow::DT_BFLOAT16);
}

absl::Status CheckTypes(const char* op, const std::vector<DataType>& types,
                        const std::vector<DataType>& wire_types) {
  if (types.size() != wire_types.size()) {
    return absl::InvalidArgumentError(std::string(op) + ": wire_types must be " +
                                      std::to_string(types.size()) + " but are " +
                                      std::to_string(wire_types.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (!CanBeSentAs(types[i], wire_types[i])) {
      return absl::InvalidArgumentError(std::string(op) + ": part " + std::to_string(i) + " of " +
                                        DataTypeString(types[i]) + " cannot be sent as " +
                                        DataTypeString(wire_types[i]));
    }
  }
  return absl::OkStatus();
}

REGISTER_OP("EmbedpsPack")
    .Input("parts: types")
    .Attr("types: list({float, bfloat16, int32, int64}) >= 1")
    .Attr("wire_types: list({float, bfloat16, int32, int64}) >= 1")
    .Output("message: uint8")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    })
    .Doc("Packs tensors into one. Rounds a float32 whose wire type is bfloat16.");

class PackOp : public OpKernel {
 public:
  explicit PackOp(OpKernelConstruction* c) : OpKernel(c) {
    std::vector<DataType> types;
    OP_REQUIRES_OK(c, c->GetAttr("types", &types));
    OP_REQUIRES_OK(c, c->GetAttr("wire_types", &wire_types_));
    OP_REQUIRES_OK(c, CheckTypes("EmbedpsPack", types, wire_types_));
  }

  void Compute(OpKernelContext* context) override {
    const int num_parts = context->num_inputs();
    std::vector<int64_t> header = {num_parts};
    for (int i = 0; i < num_parts; ++i) {
      const Tensor& part = context->input(i);
      OP_REQUIRES(
          context, part.dims() <= kMaxRank,
          absl::InvalidArgumentError("EmbedpsPack: part " + std::to_string(i) +
                                     " must be of rank " + std::to_string(kMaxRank) +
                                     " at most but has shape " + part.shape().DebugString()));
      header.push_back(wire_types_[i]);
      header.push_back(part.dims());
      for (int d = 0; d < part.dims(); ++d) header.push_back(part.dim_size(d));
    }
    const int64_t header_bytes = static_cast<int64_t>(header.size() * sizeof(int64_t));
    int64_t size = header_bytes;
    std::vector<int64_t> begins;
    for (int i = 0; i < num_parts; ++i) {
      begins.push_back(Aligned(size));
      size = begins.back() + Bytes(context->input(i), wire_types_[i]);
    }
    Tensor* message;
    OP_REQUIRES_OK(context, context->allocate_output(0, {size}, &message));
    uint8_t* to = message->flat<uint8_t>().data();
    std::memcpy(to, header.data(), header_bytes);
    int64_t end = header_bytes;
    for (int i = 0; i < num_parts; ++i) {
      std::memset(to + end, 0, begins[i] - end);
      const Tensor& part = context->input(i);
      if (part.dtype() == wire_types_[i]) {
        std::memcpy(to + begins[i], part.tensor_data().data(), part.tensor_data().size());
      } else {
        RoundToBf16(part.flat<float>().data(), part.NumElements(),
                    reinterpret_cast<Bf16*>(to + begins[i]));
      }
      end = begins[i] + Bytes(part, wire_types_[i]);
    }
  }

 private:
  static int64_t Bytes(const Tensor& part, DataType wire_type) {
    return part.NumElements() * tensorflow::DataTypeSize(wire_type);
  }

  std::vector<DataType> wire_types_;
};
EMBEDPS_KERNEL(Pack);

REGISTER_OP("EmbedpsUnpack")
    .Input("message: uint8")
    .Attr("types: list({float, bfloat16, int32, int64}) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .Output("parts: types")
    .SetShapeFn([](InferenceContext* c) {
      std::vector<tensorflow::PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("shapes", &shapes));
      if (static_cast<int>(shapes.size()) != c->num_outputs()) {
        return absl::InvalidArgumentError("EmbedpsUnpack: shapes must be as many as types");
      }
      for (int i = 0; i < c->num_outputs(); ++i) {
        tensorflow::shape_inference::ShapeHandle shape;
        TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        c->set_output(i, shape);
      }
      return absl::OkStatus();
    })
    .Doc(
        "Returns the parts of a message of EmbedpsPack, in place. Widens a part that was sent as "
        "bfloat16 if its type is float32. Fails for other types and shapes.");

class UnpackOp : public OpKernel {
 public:
  explicit UnpackOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("types", &types_));
    OP_REQUIRES_OK(c, c->GetAttr("shapes", &shapes_));
    OP_REQUIRES(c, shapes_.size() == types_.size(),
                absl::InvalidArgumentError("EmbedpsUnpack: shapes must be as many as types"));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& message = context->input(0);
    OP_REQUIRES(context, message.dims() == 1,
                absl::InvalidArgumentError("EmbedpsUnpack: a message must be of rank 1 but has "
                                           "shape " +
                                           message.shape().DebugString()));
    std::vector<Part> parts;
    OP_REQUIRES_OK(context, ReadHeader(message, &parts));
    for (size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      // If the message is not aligned, its slices are not aligned either.
      const Tensor bytes = message.Slice(part.begin, part.begin + part.bytes);
      if (part.type == types_[i] && (bytes.IsAligned() || part.bytes == 0)) {
        Tensor same;
        OP_REQUIRES_OK(context, same.BitcastFrom(bytes, part.type, part.shape));
        context->set_output(i, same);
        continue;
      }
      Tensor* out;
      OP_REQUIRES_OK(context, context->allocate_output(i, part.shape, &out));
      const char* from = bytes.tensor_data().data();
      if (part.type == types_[i]) {
        std::memcpy(out->data(), from, part.bytes);
      } else {
        WidenBf16(reinterpret_cast<const Bf16*>(from), part.shape.num_elements(),
                  out->flat<float>().data());
      }
    }
  }

 private:
  struct Part {
    DataType type = tensorflow::DT_INVALID;
    TensorShape shape;
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  absl::Status ReadHeader(const Tensor& message, std::vector<Part>* parts) const {
    const std::string whole =
        "EmbedpsUnpack: a message of " + std::to_string(message.NumElements()) + " bytes ";
    const char* data = message.tensor_data().data();
    const int64_t size = message.NumElements();
    int64_t at = 0;
    const auto next = [&](int64_t* value) {
      if (size - at < static_cast<int64_t>(sizeof(int64_t))) {
        return absl::InvalidArgumentError(whole + "ends within its header");
      }
      std::memcpy(value, data + at, sizeof(int64_t));
      at += sizeof(int64_t);
      return absl::OkStatus();
    };
    int64_t num_parts = 0;
    TF_RETURN_IF_ERROR(next(&num_parts));
    if (num_parts != static_cast<int64_t>(types_.size())) {
      return absl::InvalidArgumentError(whole + "must have " + std::to_string(types_.size()) +
                                        " parts but has " + std::to_string(num_parts));
    }
    parts->resize(num_parts);
    for (int64_t i = 0; i < num_parts; ++i) {
      Part& part = (*parts)[i];
      const std::string which = whole + "has part " + std::to_string(i) + " ";
      int64_t type = 0, rank = 0;
      TF_RETURN_IF_ERROR(next(&type));
      TF_RETURN_IF_ERROR(next(&rank));
      part.type = static_cast<DataType>(type);
      if (type != part.type || !CanBeSentAs(types_[i], part.type)) {
        return absl::InvalidArgumentError(which + "of dtype " + std::to_string(type) +
                                          " where it must be " + DataTypeString(types_[i]));
      }
      if (rank < 0 || rank > kMaxRank) {
        return absl::InvalidArgumentError(which + "of rank " + std::to_string(rank));
      }
      for (int64_t d = 0; d < rank; ++d) {
        int64_t dim = 0;
        TF_RETURN_IF_ERROR(next(&dim));
        if (dim < 0 || !part.shape.AddDimWithStatus(dim).ok()) {
          return absl::InvalidArgumentError(which + "with a dimension of " + std::to_string(dim));
        }
      }
      if (!shapes_[i].IsCompatibleWith(part.shape)) {
        return absl::InvalidArgumentError(which + "of shape " + part.shape.DebugString() +
                                          " where it must be " + shapes_[i].DebugString());
      }
    }
    for (Part& part : *parts) {
      part.begin = Aligned(at);
      const int64_t item = tensorflow::DataTypeSize(part.type);
      if (part.begin > size || part.shape.num_elements() > (size - part.begin) / item) {
        return absl::InvalidArgumentError(whole + "ends within its parts");
      }
      part.bytes = part.shape.num_elements() * item;
      at = part.begin + part.bytes;
    }
    if (at != size) return absl::InvalidArgumentError(whole + "must end at " + std::to_string(at));
    return absl::OkStatus();
  }

  std::vector<DataType> types_;
  std::vector<tensorflow::PartialTensorShape> shapes_;
};
EMBEDPS_KERNEL(Unpack);

}  // namespace
}  // namespace embedps
