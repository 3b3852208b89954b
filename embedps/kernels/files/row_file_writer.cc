#include "embedps/kernels/files/row_file_writer.h"

#include <arrow/array.h>
#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/buffer.h>
#include <arrow/ipc/writer.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/output_file.h"
#include "embedps/kernels/files/row_file_schema.h"
#include "embedps/kernels/runtime/bf16.h"
#include "embedps/kernels/runtime/float_dtype.h"

namespace embedps {
namespace {

arrow::Result<std::shared_ptr<arrow::Array>> TablesArray(const std::vector<std::string>& tables) {
  arrow::StringBuilder builder;
  ARROW_RETURN_NOT_OK(builder.AppendValues(tables));
  return builder.Finish();
}

// Returns a view of `rows` * width values from row `first` on. The vector must outlive it.
template <typename T>
std::shared_ptr<arrow::Buffer> View(const std::vector<T>& values, int64_t first, int64_t rows,
                                    int width) {
  return std::make_shared<arrow::Buffer>(
      reinterpret_cast<const uint8_t*>(values.data() + first * width),
      static_cast<int64_t>(sizeof(T)) * rows * width);
}

class ArrowRowFileWriter final : public RowFileWriter {
 public:
  ArrowRowFileWriter(const std::string& path, RowFileSchema schema)
      : path_(path), schema_(std::move(schema)), arrow_schema_(ToArrow(schema_)), output_(path) {}

  Status Init(const std::string& compression) {
    arrow::Compression::type codec;
    if (compression == "none") {
      codec = arrow::Compression::UNCOMPRESSED;
    } else if (compression == "lz4") {
      codec = arrow::Compression::LZ4_FRAME;
    } else if (compression == "zstd") {
      codec = arrow::Compression::ZSTD;
    } else {
      return Status::InvalidArgument("compression must be 'none', 'lz4' or 'zstd' but is " +
                                     Quoted(compression));
    }
    EMBEDPS_RETURN_IF_ERROR(output_.Open());
    return output_.Wrap(Start(codec));
  }

  Status Append(const RowColumns& columns) override {
    if (writer_ == nullptr || output_.finished()) {
      return Status::InvalidArgument("row file " + Quoted(path_) + " is finished: open another");
    }
    EMBEDPS_RETURN_IF_ERROR(CheckColumns(columns));
    for (int64_t first = 0; first < columns.num_rows; first += kMaxRowFileBatchRows) {
      const int64_t rows = std::min(kMaxRowFileBatchRows, columns.num_rows - first);
      EMBEDPS_RETURN_IF_ERROR(output_.Wrap(WriteBatch(columns, first, rows)));
    }
    return Status::Ok();
  }

  Status Finish(RowFileInfo* info) override {
    if (writer_ == nullptr || output_.finished()) {
      return Status::InvalidArgument("row file " + Quoted(path_) + " is finished: open another");
    }
    EMBEDPS_RETURN_IF_ERROR(output_.Wrap(writer_->Close()));
    writer_.reset();
    EMBEDPS_RETURN_IF_ERROR(output_.Finish(info));
    info->rows = records_ - removed_;
    info->removed = removed_;
    return Status::Ok();
  }

 private:
  arrow::Status Start(arrow::Compression::type codec) {
    ARROW_ASSIGN_OR_RAISE(tables_, TablesArray(schema_.tables));
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    options.alignment = 64;
    options.use_threads = false;  // shards write in parallel already, beside training
    if (codec != arrow::Compression::UNCOMPRESSED) {
      ARROW_ASSIGN_OR_RAISE(options.codec, arrow::util::Codec::Create(codec));
    }
    ARROW_ASSIGN_OR_RAISE(writer_,
                          arrow::ipc::MakeFileWriter(output_.stream(), arrow_schema_, options));
    return arrow::Status::OK();
  }

  Status CheckLength(const char* column, size_t found, int64_t width, int64_t rows) const {
    if (rows >= 0 && static_cast<int64_t>(found) == rows * width) return Status::Ok();
    return Status::InvalidArgument("row file " + Quoted(path_) + ": column " + Quoted(column) +
                                   " must have " + std::to_string(rows) + " rows of " +
                                   std::to_string(width) + " but has " + std::to_string(found) +
                                   " values");
  }

  Status CheckColumns(const RowColumns& columns) const {
    const int64_t rows = columns.num_rows;
    EMBEDPS_RETURN_IF_ERROR(CheckLength("table", columns.table.size(), 1, rows));
    EMBEDPS_RETURN_IF_ERROR(CheckLength("id", columns.id.size(), 1, rows));
    EMBEDPS_RETURN_IF_ERROR(CheckLength("embedding", columns.embedding.size(), schema_.dim, rows));
    if (columns.optimizer_slots.size() != schema_.optimizer_slots.size()) {
      return Status::InvalidArgument("row file " + Quoted(path_) + " must have " +
                                     std::to_string(schema_.optimizer_slots.size()) +
                                     " optimizer slots but was given " +
                                     std::to_string(columns.optimizer_slots.size()));
    }
    for (size_t s = 0; s < schema_.optimizer_slots.size(); ++s) {
      const OptimizerSlot& slot = schema_.optimizer_slots[s];
      EMBEDPS_RETURN_IF_ERROR(
          CheckLength(slot.name.c_str(), columns.optimizer_slots[s].size(), slot.width, rows));
    }
    EMBEDPS_RETURN_IF_ERROR(CheckLength("last_step", columns.last_step.size(), 1, rows));
    EMBEDPS_RETURN_IF_ERROR(CheckLength("frequency", columns.frequency.size(), 1, rows));
    EMBEDPS_RETURN_IF_ERROR(CheckLength("removed", columns.removed.size(), 1, rows));
    for (int64_t i = 0; i < rows; ++i) {
      if (columns.table[i] >= 0 && columns.table[i] < static_cast<int>(schema_.tables.size())) {
        continue;
      }
      return Status::InvalidArgument(
          "row file " + Quoted(path_) + ", row " + std::to_string(i) + ": table must be in [0, " +
          std::to_string(schema_.tables.size()) + ") but is " + std::to_string(columns.table[i]));
    }
    return Status::Ok();
  }

  arrow::Status WriteBatch(const RowColumns& columns, int64_t first, int64_t rows) {
    arrow::ArrayVector arrays;
    arrays.push_back(std::make_shared<arrow::DictionaryArray>(
        arrow_schema_->field(0)->type(),
        std::make_shared<arrow::Int16Array>(rows, View(columns.table, first, rows, 1)), tables_));
    arrays.push_back(std::make_shared<arrow::Int64Array>(rows, View(columns.id, first, rows, 1)));
    if (IsQuantized(schema_)) {
      Quantize(columns.embedding.data() + first * schema_.dim, rows);
      arrays.push_back(Lists<arrow::UInt8Array>(
          View(codes_, 0, rows, CodeBytes(schema_.embedding_encoding, schema_.dim)),
          arrow_schema_->field(2)->type(), rows));
      arrays.push_back(std::make_shared<arrow::FloatArray>(rows, View(scales_, 0, rows, 1)));
      arrays.push_back(std::make_shared<arrow::FloatArray>(rows, View(offsets_, 0, rows, 1)));
    } else {
      arrays.push_back(Embeddings(columns, first, rows));
    }
    rounded_slots_.resize(schema_.optimizer_slots.size());
    for (size_t s = 0; s < schema_.optimizer_slots.size(); ++s) {
      const std::vector<float>& values = columns.optimizer_slots[s];
      const int width = schema_.optimizer_slots[s].width;
      const auto& type = arrow_schema_->field(static_cast<int>(arrays.size()))->type();
      if (schema_.optimizer_slot_encoding == OptimizerSlotEncoding::kBfloat16) {
        rounded_slots_[s].resize(rows * width);
        std::transform(values.data() + first * width, values.data() + (first + rows) * width,
                       rounded_slots_[s].data(), ToBf16);
        arrays.push_back(
            Lists<arrow::UInt16Array>(View(rounded_slots_[s], 0, rows, width), type, rows));
      } else {
        arrays.push_back(Lists<arrow::FloatArray>(View(values, first, rows, width), type, rows));
      }
    }
    arrays.push_back(
        std::make_shared<arrow::UInt32Array>(rows, View(columns.last_step, first, rows, 1)));
    arrays.push_back(
        std::make_shared<arrow::UInt32Array>(rows, View(columns.frequency, first, rows, 1)));
    arrow::BooleanBuilder removed_builder;
    ARROW_RETURN_NOT_OK(removed_builder.AppendValues(columns.removed.data() + first, rows));
    ARROW_ASSIGN_OR_RAISE(auto removed, removed_builder.Finish());
    arrays.push_back(std::move(removed));
    ARROW_RETURN_NOT_OK(writer_->WriteRecordBatch(
        *arrow::RecordBatch::Make(arrow_schema_, rows, std::move(arrays))));
    for (int64_t i = first; i < first + rows; ++i) removed_ += columns.removed[i] != 0;
    records_ += rows;
    return arrow::Status::OK();
  }

  std::shared_ptr<arrow::Array> Embeddings(const RowColumns& columns, int64_t first, int64_t rows) {
    const int dim = schema_.dim;
    const auto& type = arrow_schema_->field(2)->type();
    if (schema_.embedding_encoding == EmbeddingEncoding::kFloat32) {
      return Lists<arrow::FloatArray>(View(columns.embedding, first, rows, dim), type, rows);
    }
    const bool bfloat16 = schema_.embedding_encoding == EmbeddingEncoding::kBfloat16;
    halves_.resize(rows * dim);
    RoundToNearest(bfloat16 ? FloatDtype::kBfloat16 : FloatDtype::kFloat16,
                   columns.embedding.data() + first * dim, rows * dim, halves_.data());
    auto values = View(halves_, 0, rows, dim);
    if (bfloat16) return Lists<arrow::UInt16Array>(std::move(values), type, rows);
    return Lists<arrow::HalfFloatArray>(std::move(values), type, rows);
  }

  void Quantize(const float* embeddings, int64_t rows) {
    const int code_bytes = CodeBytes(schema_.embedding_encoding, schema_.dim);
    codes_.resize(rows * code_bytes);
    scales_.resize(rows);
    offsets_.resize(rows);
    for (int64_t i = 0; i < rows; ++i) {
      EncodeRow(schema_.embedding_encoding, embeddings + i * schema_.dim, schema_.dim,
                &codes_[i * code_bytes], &scales_[i], &offsets_[i]);
    }
  }

  template <typename ArrayType>
  static std::shared_ptr<arrow::Array> Lists(std::shared_ptr<arrow::Buffer> values,
                                             const std::shared_ptr<arrow::DataType>& type,
                                             int64_t rows) {
    const int width = static_cast<const arrow::FixedSizeListType&>(*type).list_size();
    return std::make_shared<arrow::FixedSizeListArray>(
        type, rows, std::make_shared<ArrayType>(rows * width, std::move(values)));
  }

  const std::string path_;
  const RowFileSchema schema_;
  const std::shared_ptr<arrow::Schema> arrow_schema_;
  OutputFile output_;
  std::shared_ptr<arrow::Array> tables_;
  // One encoded batch.
  std::vector<uint8_t> codes_;
  std::vector<float> scales_, offsets_;
  std::vector<uint16_t> halves_;
  std::vector<std::vector<uint16_t>> rounded_slots_;
  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer_;
  int64_t records_ = 0;
  int64_t removed_ = 0;
};

}  // namespace

Status RowFileWriter::Open(const std::string& path, const RowFileSchema& schema,
                           const std::string& compression, std::unique_ptr<RowFileWriter>* writer) {
  EMBEDPS_RETURN_IF_ERROR(CheckSchema(schema));
  auto opened = std::make_unique<ArrowRowFileWriter>(path, schema);
  EMBEDPS_RETURN_IF_ERROR(opened->Init(compression));
  *writer = std::move(opened);
  return Status::Ok();
}

}  // namespace embedps
