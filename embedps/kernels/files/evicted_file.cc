#include "embedps/kernels/files/evicted_file.h"

#include <arrow/array.h>
#include <arrow/array/builder_binary.h>
#include <arrow/buffer.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <iterator>
#include <utility>

#include "embedps/kernels/files/output_file.h"

namespace embedps {
namespace {

constexpr int64_t kBufferBytes = 2 * kFilePieceBytes;

template <typename T>
std::shared_ptr<arrow::Buffer> View(const std::vector<T>& values) {
  return std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t*>(values.data()),
                                         static_cast<int64_t>(sizeof(T) * values.size()));
}

arrow::Result<std::shared_ptr<arrow::Array>> Names(const std::vector<std::string>& names) {
  arrow::StringBuilder builder;
  ARROW_RETURN_NOT_OK(builder.AppendValues(names));
  return builder.Finish();
}

std::shared_ptr<arrow::DataType> ListType(int width) {
  return arrow::fixed_size_list(arrow::field("item", arrow::float32(), false), width);
}

std::shared_ptr<arrow::Schema> ToArrow(const RowFileSchema& schema) {
  const auto field = [](const std::string& name, std::shared_ptr<arrow::DataType> type) {
    return arrow::field(name, std::move(type), /*nullable=*/false);
  };
  arrow::FieldVector fields = {
      field("table", arrow::dictionary(arrow::int16(), arrow::utf8())),
      field("id", arrow::int64()),
      field("reason", arrow::dictionary(arrow::int8(), arrow::utf8())),
      field("evicted_step", arrow::uint32()),
      field("evicted_time", arrow::timestamp(arrow::TimeUnit::MILLI, "UTC")),
      field("last_step", arrow::uint32()),
      field("frequency", arrow::uint32()),
      field("embedding", ListType(schema.dim)),
  };
  for (const OptimizerSlot& slot : schema.optimizer_slots) {
    fields.push_back(field(slot.name, ListType(slot.width)));
  }
  return arrow::schema(std::move(fields));
}

// Takes little memory: a batch's record stays in memory until the file is finished. Only names are
// few enough for a dictionary, and only ids and steps are searched by their bounds.
std::shared_ptr<parquet::WriterProperties> Properties() {
  return parquet::WriterProperties::Builder()
      .memory_pool(arrow::system_memory_pool())
      ->compression(parquet::Compression::ZSTD)
      ->disable_dictionary()
      ->enable_dictionary("table")
      ->enable_dictionary("reason")
      ->disable_statistics()
      ->enable_statistics("id")
      ->enable_statistics("evicted_step")
      ->enable_statistics("last_step")
      ->set_size_statistics_level(parquet::SizeStatisticsLevel::None)
      ->build();
}

class ParquetEvictedFileWriter final : public EvictedFileWriter {
 public:
  ParquetEvictedFileWriter(const std::string& path, const RowFileSchema& schema,
                           const std::vector<std::string>& reasons)
      : schema_(schema),
        reason_names_(reasons),
        arrow_schema_(ToArrow(schema)),
        output_(path, /*hidden=*/true, kBufferBytes) {}

  Status Init() {
    EMBEDPS_RETURN_IF_ERROR(output_.Open());
    return output_.Wrap(Start());
  }

  Status Append(const EvictedColumns& columns) override { return output_.Wrap(Write(columns)); }

  Status Finish(RowFileInfo* info) override {
    EMBEDPS_RETURN_IF_ERROR(output_.Wrap(writer_->Close()));
    EMBEDPS_RETURN_IF_ERROR(output_.Finish(info));
    info->rows = rows_;
    return Status::Ok();
  }

 private:
  arrow::Status Start() {
    ARROW_ASSIGN_OR_RAISE(tables_, Names(schema_.tables));
    ARROW_ASSIGN_OR_RAISE(reasons_, Names(reason_names_));
    auto properties = Properties();
    auto arrow_properties = parquet::ArrowWriterProperties::Builder().store_schema()->build();
    // A view: the file's owner closes it.
    const std::shared_ptr<arrow::io::OutputStream> sink(output_.stream(),
                                                        [](arrow::io::OutputStream*) {});
    ARROW_ASSIGN_OR_RAISE(
        writer_, parquet::arrow::FileWriter::Open(*arrow_schema_, arrow::system_memory_pool(), sink,
                                                  properties, arrow_properties));
    return arrow::Status::OK();
  }

  arrow::Status Write(const EvictedColumns& columns) {
    const RowColumns& rows = columns.rows;
    const int64_t n = rows.num_rows;
    arrow::ArrayVector arrays = {
        std::make_shared<arrow::DictionaryArray>(
            arrow_schema_->field(0)->type(),
            std::make_shared<arrow::Int16Array>(n, View(rows.table)), tables_),
        std::make_shared<arrow::Int64Array>(n, View(rows.id)),
        std::make_shared<arrow::DictionaryArray>(
            arrow_schema_->field(2)->type(),
            std::make_shared<arrow::Int8Array>(n, View(columns.reason)), reasons_),
        std::make_shared<arrow::UInt32Array>(n, View(columns.evicted_step)),
        std::make_shared<arrow::TimestampArray>(arrow_schema_->field(4)->type(), n,
                                                View(columns.evicted_millis)),
        std::make_shared<arrow::UInt32Array>(n, View(rows.last_step)),
        std::make_shared<arrow::UInt32Array>(n, View(rows.frequency)),
        Lists(rows.embedding, 7, n),
    };
    for (const std::vector<float>& values : rows.optimizer_slots) {
      arrays.push_back(Lists(values, static_cast<int>(arrays.size()), n));
    }
    ARROW_ASSIGN_OR_RAISE(auto table, arrow::Table::FromRecordBatches({arrow::RecordBatch::Make(
                                          arrow_schema_, n, std::move(arrays))}));
    ARROW_RETURN_NOT_OK(writer_->WriteTable(*table, n));
    rows_ += n;
    return arrow::Status::OK();
  }

  std::shared_ptr<arrow::Array> Lists(const std::vector<float>& values, int column,
                                      int64_t rows) const {
    const auto length = static_cast<int64_t>(values.size());
    return std::make_shared<arrow::FixedSizeListArray>(
        arrow_schema_->field(column)->type(), rows,
        std::make_shared<arrow::FloatArray>(length, View(values)));
  }

  const RowFileSchema schema_;
  const std::vector<std::string> reason_names_;
  const std::shared_ptr<arrow::Schema> arrow_schema_;
  OutputFile output_;
  std::shared_ptr<arrow::Array> tables_, reasons_;
  std::unique_ptr<parquet::arrow::FileWriter> writer_;  // before output_ goes
  int64_t rows_ = 0;
};

}  // namespace

Status EvictedFileWriter::Open(const std::string& path, const RowFileSchema& schema,
                               const std::vector<std::string>& reasons,
                               std::unique_ptr<EvictedFileWriter>* writer) {
  auto made = std::make_unique<ParquetEvictedFileWriter>(path, schema, reasons);
  EMBEDPS_RETURN_IF_ERROR(made->Init());
  *writer = std::move(made);
  return Status::Ok();
}

}  // namespace embedps
