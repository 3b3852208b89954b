#include "embedps/kernels/files/admission_file.h"

#include <arrow/array.h>
#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/buffer.h>
#include <arrow/ipc/reader.h>
#include <arrow/ipc/writer.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/key_value_metadata.h>

#include <utility>

#include "embedps/kernels/files/input_file.h"
#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/output_file.h"
#include "embedps/kernels/files/row_file_schema.h"

namespace embedps {
namespace {

std::shared_ptr<arrow::Schema> SchemaOf(const std::vector<std::string>& tables) {
  auto metadata = std::make_shared<arrow::KeyValueMetadata>();
  metadata->Append(kAdmissionFileVersionKey, kAdmissionFileVersion);
  metadata->Append(kRowFileNumTablesKey, std::to_string(tables.size()));
  for (size_t i = 0; i < tables.size(); ++i) {
    metadata->Append(kRowFileTableKeyPrefix + std::to_string(i), tables[i]);
  }
  return arrow::schema(
      {arrow::field("table", arrow::dictionary(arrow::int16(), arrow::utf8()), false),
       arrow::field("id", arrow::int64(), false), arrow::field("count", arrow::uint32(), false),
       arrow::field("last_step", arrow::uint32(), false),
       arrow::field("removed", arrow::boolean(), false)},
      std::move(metadata));
}

template <typename T>
std::shared_ptr<arrow::Buffer> View(const std::vector<T>& values, int64_t first, int64_t rows) {
  return std::make_shared<arrow::Buffer>(reinterpret_cast<const uint8_t*>(values.data() + first),
                                         static_cast<int64_t>(sizeof(T)) * rows);
}

class ArrowAdmissionFileWriter final : public AdmissionFileWriter {
 public:
  ArrowAdmissionFileWriter(std::string path, const std::vector<std::string>& tables)
      : output_(std::move(path)), schema_(SchemaOf(tables)), names_(tables) {}

  Status Init() {
    EMBEDPS_RETURN_IF_ERROR(output_.Open());
    return output_.Wrap(Start());
  }

  Status Append(const CounterColumns& columns) override {
    for (int64_t first = 0; first < columns.num_records; first += kMaxRowFileBatchRows) {
      const int64_t rows = std::min(kMaxRowFileBatchRows, columns.num_records - first);
      EMBEDPS_RETURN_IF_ERROR(output_.Wrap(WriteBatch(columns, first, rows)));
    }
    return Status::Ok();
  }

  Status Finish(RowFileInfo* info) override {
    EMBEDPS_RETURN_IF_ERROR(output_.Wrap(writer_->Close()));
    EMBEDPS_RETURN_IF_ERROR(output_.Finish(info));
    info->rows = records_ - removed_;
    info->removed = removed_;
    return Status::Ok();
  }

 private:
  arrow::Status Start() {
    arrow::StringBuilder builder;
    ARROW_RETURN_NOT_OK(builder.AppendValues(names_));
    ARROW_ASSIGN_OR_RAISE(tables_, builder.Finish());
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    options.alignment = 64;
    options.use_threads = false;  // shards write in parallel already, beside training
    ARROW_ASSIGN_OR_RAISE(writer_, arrow::ipc::MakeFileWriter(output_.stream(), schema_, options));
    return arrow::Status::OK();
  }

  arrow::Status WriteBatch(const CounterColumns& columns, int64_t first, int64_t rows) {
    arrow::BooleanBuilder builder;
    ARROW_RETURN_NOT_OK(builder.AppendValues(columns.removed.data() + first, rows));
    ARROW_ASSIGN_OR_RAISE(auto removed, builder.Finish());
    const auto uints = [&](const std::vector<uint32_t>& values) {
      return std::make_shared<arrow::UInt32Array>(rows, View(values, first, rows));
    };
    const arrow::ArrayVector arrays = {
        std::make_shared<arrow::DictionaryArray>(
            schema_->field(0)->type(),
            std::make_shared<arrow::Int16Array>(rows, View(columns.table, first, rows)), tables_),
        std::make_shared<arrow::Int64Array>(rows, View(columns.id, first, rows)),
        uints(columns.count), uints(columns.last_step), removed};
    ARROW_RETURN_NOT_OK(
        writer_->WriteRecordBatch(*arrow::RecordBatch::Make(schema_, rows, arrays)));
    for (int64_t i = first; i < first + rows; ++i) removed_ += columns.removed[i] != 0;
    records_ += rows;
    return arrow::Status::OK();
  }

  OutputFile output_;
  const std::shared_ptr<arrow::Schema> schema_;
  const std::vector<std::string> names_;
  std::shared_ptr<arrow::Array> tables_;
  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer_;
  int64_t records_ = 0;
  int64_t removed_ = 0;
};

// Reads the names of a file's tables, and checks that its schema is an admission file's.
Status ReadSchema(const std::string& path, const arrow::Schema& schema,
                  std::vector<std::string>* tables) {
  const auto value = [&](const std::string& key) -> std::string {
    if (schema.metadata() == nullptr) return "";
    return schema.metadata()->Get(key).ValueOr("");
  };
  if (value(kAdmissionFileVersionKey) != kAdmissionFileVersion) {
    return Mismatch(path, "schema metadata '" + std::string(kAdmissionFileVersionKey) + "'",
                    Quoted(kAdmissionFileVersion), Quoted(value(kAdmissionFileVersionKey)));
  }
  for (int i = 0; i <= kMaxRowFileTables; ++i) {
    const std::string key = kRowFileTableKeyPrefix + std::to_string(i);
    if (schema.metadata()->FindKey(key) < 0) break;
    tables->push_back(value(key));
  }
  const std::shared_ptr<arrow::Schema> expected = SchemaOf(*tables);
  if (!schema.Equals(*expected, /*check_metadata=*/false)) {
    return Mismatch(path, "schema", expected->ToString(), schema.ToString());
  }
  return Status::Ok();
}

int64_t MaxBatchBytes(const std::vector<std::string>& tables) {
  int64_t table_bytes = 0;
  for (const std::string& table : tables) table_bytes += table.size() + sizeof(int32_t);
  // table, id, count, last_step, removed. The slack is for rounded-up buffers and headers.
  constexpr int64_t kRecordBytes = 2 + 8 + 4 + 4 + 1, kSlackBytes = 1 << 20;
  return kMaxRowFileBatchRows * kRecordBytes + 2 * table_bytes + kSlackBytes;
}

Status CopyBatch(const std::string& path, const arrow::RecordBatch& batch, size_t num_tables,
                 CounterColumns* columns) {
  const arrow::Status valid = batch.ValidateFull();
  if (!valid.ok()) return Mismatch(path, "record batch", "a valid one", valid.ToString());
  for (int i = 0; i < batch.num_columns(); ++i) {
    if (batch.column(i)->null_count() == 0) continue;
    return Mismatch(path, FieldName(batch.column_name(i)), "no nulls",
                    std::to_string(batch.column(i)->null_count()) + " nulls");
  }
  const int64_t rows = batch.num_rows();
  columns->num_records = rows;
  const auto copy = [rows](const auto& array, auto* to) {
    to->assign(array.raw_values(), array.raw_values() + rows);
  };
  const auto& tables = static_cast<const arrow::DictionaryArray&>(*batch.column(0));
  copy(static_cast<const arrow::Int16Array&>(*tables.indices()), &columns->table);
  copy(static_cast<const arrow::Int64Array&>(*batch.column(1)), &columns->id);
  copy(static_cast<const arrow::UInt32Array&>(*batch.column(2)), &columns->count);
  copy(static_cast<const arrow::UInt32Array&>(*batch.column(3)), &columns->last_step);
  const auto& removed = static_cast<const arrow::BooleanArray&>(*batch.column(4));
  columns->removed.resize(rows);
  for (int64_t i = 0; i < rows; ++i) columns->removed[i] = removed.Value(i) ? 1 : 0;
  for (const int16_t table : columns->table) {
    if (table >= 0 && table < static_cast<int>(num_tables)) continue;
    return Mismatch(path, "field 'table'", "an index in [0, " + std::to_string(num_tables) + ")",
                    std::to_string(table));
  }
  return Status::Ok();
}

}  // namespace

Status AdmissionFileWriter::Open(const std::string& path, const std::vector<std::string>& tables,
                                 std::unique_ptr<AdmissionFileWriter>* writer) {
  auto opened = std::make_unique<ArrowAdmissionFileWriter>(path, tables);
  EMBEDPS_RETURN_IF_ERROR(opened->Init());
  *writer = std::move(opened);
  return Status::Ok();
}

Status ReadAdmissionFile(const std::string& path, const FileSum& expected,
                         const std::function<void(const CounterColumns&,
                                                  const std::vector<std::string>& tables)>& take) {
  EMBEDPS_RETURN_IF_ERROR(VerifyFile(path, expected));
  std::shared_ptr<InputFile> file;
  EMBEDPS_RETURN_IF_ERROR(InputFile::Open(path, kMaxWholeFileBytes, &file));
  const auto unreadable = [&path](const arrow::Status& status) {
    return Status::DataLoss("admission file " + Quoted(path) +
                            ": cannot be decoded as Arrow IPC: " + status.ToString());
  };
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  options.use_threads = false;  // shards load their files in parallel
  const auto opened = arrow::ipc::RecordBatchFileReader::Open(file, options);
  if (!opened.ok()) return unreadable(opened.status());
  std::vector<std::string> tables;
  EMBEDPS_RETURN_IF_ERROR(ReadSchema(path, *(*opened)->schema(), &tables));
  // The most bytes of a batch are known now: limit what decompression may allocate to it.
  arrow::ProxyMemoryPool pool(arrow::default_memory_pool());
  arrow::CappedMemoryPool capped(&pool, MaxBatchBytes(tables));  // outlives the reader
  options.memory_pool = &capped;
  const auto reader = arrow::ipc::RecordBatchFileReader::Open(file, options);
  if (!reader.ok()) return unreadable(reader.status());
  CounterColumns columns;
  for (int i = 0; i < (*reader)->num_record_batches(); ++i) {
    auto batch = (*reader)->ReadRecordBatch(i);
    if (!batch.ok()) return unreadable(batch.status());
    EMBEDPS_RETURN_IF_ERROR(CopyBatch(path, **batch, tables.size(), &columns));
    take(columns, tables);
  }
  return Status::Ok();
}

}  // namespace embedps
