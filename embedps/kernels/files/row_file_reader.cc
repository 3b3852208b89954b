#include "embedps/kernels/files/row_file_reader.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "embedps/kernels/files/input_file.h"
#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/row_file_schema.h"
#include "embedps/kernels/runtime/bf16.h"
#include "embedps/kernels/runtime/float_dtype.h"

namespace embedps {
namespace {

// Returns the status for Arrow's failure to read: the file is damaged.
Status ReadError(const std::string& path, const std::string& where, const arrow::Status& status) {
  return Status::DataLoss("row file " + Quoted(path) + ", " + where +
                          ": cannot be decoded as Arrow IPC: " + status.ToString());
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

Status SumOf(const std::string& path, InputFile& file, FileSum* found) {
  const auto xxh3_64 = file.Xxh3_64(&found->bytes);
  if (!xxh3_64.ok()) return Status::IoError(Quoted(path) + ": " + xxh3_64.status().ToString());
  found->xxh3_64 = *xxh3_64;
  return Status::Ok();
}

Status CheckSum(const std::string& path, const FileSum& expected, InputFile& file) {
  FileSum found;
  EMBEDPS_RETURN_IF_ERROR(SumOf(path, file, &found));
  return CheckSum(path, expected, found);
}

class ArrowRowFileReader final : public RowFileReader {
 public:
  ArrowRowFileReader(std::string path, const std::optional<FileSum>& expected)
      : path_(std::move(path)), expected_(expected), pool_(arrow::default_memory_pool()) {}

  Status Init() {
    EMBEDPS_RETURN_IF_ERROR(InputFile::Open(path_, kMaxWholeFileBytes, &file_));
    if (expected_.has_value() && file_->whole()) {
      EMBEDPS_RETURN_IF_ERROR(CheckSum(path_, *expected_, *file_));
    }
    return Explain(ReadFooter());
  }

  const RowFileSchema& schema() const override { return schema_; }
  int num_batches() const override { return reader_->num_record_batches(); }

  Status Read(int index, RowColumns* columns) override {
    return Explain(ReadBatch(index, columns));
  }

  Status Finish() override {
    if (!expected_.has_value()) return Status::Ok();
    return CheckSum(path_, *expected_, *file_);
  }

 private:
  // Explains a failure: if the file's checksum is wrong, says that instead.
  Status Explain(const Status& status) const {
    if (status.ok() || !expected_.has_value() || file_->whole()) return status;
    EMBEDPS_RETURN_IF_ERROR(VerifyFile(path_, *expected_));
    return status;
  }

  Status ReadFooter() {
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.use_threads = false;  // shards load their files in parallel
    auto opened = arrow::ipc::RecordBatchFileReader::Open(file_, options);
    if (!opened.ok()) return ReadError(path_, "footer", opened.status());
    EMBEDPS_RETURN_IF_ERROR(FromArrow(path_, *(*opened)->schema(), &schema_));
    // The size of a batch is known now: limit what decompression may allocate to it.
    capped_pool_ = std::make_unique<arrow::CappedMemoryPool>(&pool_, MaxBatchBytes());
    options.memory_pool = capped_pool_.get();
    opened = arrow::ipc::RecordBatchFileReader::Open(file_, options);
    if (!opened.ok()) return ReadError(path_, "footer", opened.status());
    reader_ = *std::move(opened);
    return Status::Ok();
  }

  Status ReadBatch(int index, RowColumns* columns) {
    if (index < 0 || index >= num_batches()) {
      return Status::InvalidArgument(
          "row file " + Quoted(path_) + ": record batch must be in [0, " +
          std::to_string(num_batches()) + ") but is " + std::to_string(index));
    }
    const std::string where = "record batch " + std::to_string(index);
    auto read = reader_->ReadRecordBatch(index);
    if (!read.ok()) return ReadError(path_, where, read.status());
    const arrow::RecordBatch& batch = **read;
    const int64_t rows = batch.num_rows();
    if (rows < 0 || rows > kMaxRowFileBatchRows) {
      return Mismatch(path_, where, "at most " + std::to_string(kMaxRowFileBatchRows) + " rows",
                      std::to_string(rows));
    }
    for (int i = 0; i < batch.num_columns(); ++i) {
      const arrow::Array& column = *batch.column(i);
      const std::string field = where + ", " + FieldName(batch.column_name(i));
      // Checks that every buffer is as long as the column's length requires.
      const arrow::Status valid = column.Validate();
      if (!valid.ok()) return ReadError(path_, field, valid);
      if (column.length() != rows) {
        return Mismatch(path_, field, std::to_string(rows) + " rows",
                        std::to_string(column.length()));
      }
      if (column.null_count() != 0) {
        return Mismatch(path_, field, "no nulls", std::to_string(column.null_count()) + " nulls");
      }
    }
    columns->num_rows = rows;
    EMBEDPS_RETURN_IF_ERROR(ReadTables(*batch.column(0), where, columns));
    Copy<arrow::Int64Array>(*batch.column(1), &columns->id);
    EMBEDPS_RETURN_IF_ERROR(ReadEmbeddings(batch, where, &columns->embedding));
    const int before_optimizer_slots = NumColumnsBeforeOptimizerSlots(schema_);
    const int num_slots = static_cast<int>(schema_.optimizer_slots.size());
    columns->optimizer_slots.resize(num_slots);
    for (int s = 0; s < num_slots; ++s) {
      EMBEDPS_RETURN_IF_ERROR(ReadOptimizerSlot(batch, before_optimizer_slots + s,
                                                schema_.optimizer_slots[s].width, where,
                                                &columns->optimizer_slots[s]));
    }
    const int next = before_optimizer_slots + num_slots;
    Copy<arrow::UInt32Array>(*batch.column(next), &columns->last_step);
    Copy<arrow::UInt32Array>(*batch.column(next + 1), &columns->frequency);
    const auto& removed = static_cast<const arrow::BooleanArray&>(*batch.column(next + 2));
    columns->removed.resize(rows);
    for (int64_t i = 0; i < rows; ++i) columns->removed[i] = removed.Value(i) ? 1 : 0;
    return Status::Ok();
  }

  int64_t MaxBatchBytes() const {
    int64_t floats = schema_.dim;
    for (const OptimizerSlot& slot : schema_.optimizer_slots) floats += slot.width;
    int64_t table_bytes = 0;
    for (const std::string& table : schema_.tables) table_bytes += table.size() + sizeof(int32_t);
    // table, id, scale, offset, last_step, frequency, removed, floats. The slack is for rounded-up
    // buffers and the messages' headers.
    const int64_t row_bytes = 2 + 8 + 4 + 4 + 4 + 4 + 1 + 4 * floats;
    const int64_t slack_bytes = 1 << 20;
    return kMaxRowFileBatchRows * row_bytes + 2 * table_bytes + slack_bytes;
  }

  template <typename ArrayType, typename T>
  static void Copy(const arrow::Array& array, std::vector<T>* out) {
    const T* values = static_cast<const ArrayType&>(array).raw_values();
    out->assign(values, values + array.length());
  }

  Status ReadTables(const arrow::Array& array, const std::string& where, RowColumns* columns) {
    const auto& dictionary_array = static_cast<const arrow::DictionaryArray&>(array);
    EMBEDPS_RETURN_IF_ERROR(CheckDictionary(*dictionary_array.dictionary(), where));
    Copy<arrow::Int16Array>(*dictionary_array.indices(), &columns->table);
    const int num_tables = static_cast<int>(schema_.tables.size());
    for (int64_t i = 0; i < columns->num_rows; ++i) {
      if (columns->table[i] >= 0 && columns->table[i] < num_tables) continue;
      return Mismatch(path_, where + ", field 'table', row " + std::to_string(i),
                      "an index in [0, " + std::to_string(num_tables) + ")",
                      std::to_string(columns->table[i]));
    }
    return Status::Ok();
  }

  Status CheckDictionary(const arrow::Array& dictionary, const std::string& where) const {
    const arrow::Status valid = dictionary.ValidateFull();
    if (!valid.ok()) return ReadError(path_, where + ", dictionary of field 'table'", valid);
    const auto& names = static_cast<const arrow::StringArray&>(dictionary);
    const int64_t num_tables = static_cast<int64_t>(schema_.tables.size());
    if (names.length() != num_tables || names.null_count() != 0) {
      return Mismatch(path_, where + ", dictionary of field 'table'",
                      std::to_string(num_tables) + " names",
                      std::to_string(names.length()) + " names, " +
                          std::to_string(names.null_count()) + " of them null");
    }
    for (int64_t i = 0; i < num_tables; ++i) {
      if (names.GetView(i) == schema_.tables[i]) continue;
      return Mismatch(path_, where + ", dictionary of field 'table', entry " + std::to_string(i),
                      Quoted(schema_.tables[i]), Quoted(names.GetString(i)));
    }
    return Status::Ok();
  }

  // Finds the values of a column whose elements are lists of `width` numbers.
  template <typename ArrayType>
  Status Values(const arrow::RecordBatch& batch, int column, int width, const std::string& where,
                const typename ArrayType::value_type** first) const {
    const auto& lists = static_cast<const arrow::FixedSizeListArray&>(*batch.column(column));
    const std::string field = where + ", " + FieldName(batch.column_name(column));
    const auto& values = static_cast<const ArrayType&>(*lists.values());
    const int64_t count = lists.length() * width;
    if (lists.value_offset(0) + count > values.length()) {
      return Mismatch(path_, field, std::to_string(count) + " values",
                      std::to_string(values.length()));
    }
    if (values.null_count() != 0) {
      return Mismatch(path_, field, "no nulls", std::to_string(values.null_count()) + " nulls");
    }
    *first = values.raw_values() + lists.value_offset(0);
    return Status::Ok();
  }

  Status ReadEmbeddings(const arrow::RecordBatch& batch, const std::string& where,
                        std::vector<float>* out) const {
    const int64_t rows = batch.num_rows();
    const int dim = schema_.dim;
    if (schema_.embedding_encoding == EmbeddingEncoding::kFloat32) {
      const float* first = nullptr;
      EMBEDPS_RETURN_IF_ERROR(Values<arrow::FloatArray>(batch, 2, dim, where, &first));
      out->assign(first, first + rows * dim);
      return Status::Ok();
    }
    if (!IsQuantized(schema_)) {
      const bool bfloat16 = schema_.embedding_encoding == EmbeddingEncoding::kBfloat16;
      const uint16_t* first = nullptr;
      EMBEDPS_RETURN_IF_ERROR(bfloat16
                                  ? Values<arrow::UInt16Array>(batch, 2, dim, where, &first)
                                  : Values<arrow::HalfFloatArray>(batch, 2, dim, where, &first));
      out->resize(rows * dim);
      Widen(bfloat16 ? FloatDtype::kBfloat16 : FloatDtype::kFloat16, first, rows * dim,
            out->data());
      return Status::Ok();
    }
    const int code_bytes = CodeBytes(schema_.embedding_encoding, dim);
    const uint8_t* codes = nullptr;
    EMBEDPS_RETURN_IF_ERROR(Values<arrow::UInt8Array>(batch, 2, code_bytes, where, &codes));
    const float* scales = static_cast<const arrow::FloatArray&>(*batch.column(3)).raw_values();
    const float* offsets = static_cast<const arrow::FloatArray&>(*batch.column(4)).raw_values();
    out->resize(rows * dim);
    for (int64_t i = 0; i < rows; ++i) {
      DecodeRow(schema_.embedding_encoding, codes + i * code_bytes, scales[i], offsets[i], dim,
                out->data() + i * dim);
    }
    return Status::Ok();
  }

  Status ReadOptimizerSlot(const arrow::RecordBatch& batch, int column, int width,
                           const std::string& where, std::vector<float>* out) const {
    const int64_t count = batch.num_rows() * width;
    if (schema_.optimizer_slot_encoding == OptimizerSlotEncoding::kFloat32) {
      const float* first = nullptr;
      EMBEDPS_RETURN_IF_ERROR(Values<arrow::FloatArray>(batch, column, width, where, &first));
      out->assign(first, first + count);
      return Status::Ok();
    }
    const uint16_t* first = nullptr;
    EMBEDPS_RETURN_IF_ERROR(Values<arrow::UInt16Array>(batch, column, width, where, &first));
    out->resize(count);
    std::transform(first, first + count, out->data(), FromBf16);
    return Status::Ok();
  }

  const std::string path_;
  const std::optional<FileSum> expected_;
  RowFileSchema schema_;
  arrow::ProxyMemoryPool pool_;  // counts this reader's bytes, for the cap
  std::unique_ptr<arrow::CappedMemoryPool> capped_pool_;
  std::shared_ptr<InputFile> file_;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
};

}  // namespace

Status CheckSum(const std::string& path, const FileSum& expected, const FileSum& found) {
  if (found.bytes != expected.bytes) {
    return Mismatch(path, "field 'bytes'", std::to_string(expected.bytes),
                    std::to_string(found.bytes));
  }
  if (found.xxh3_64 != expected.xxh3_64) {
    return Mismatch(path, "field 'xxh3_64'", Hex(expected.xxh3_64), Hex(found.xxh3_64));
  }
  return Status::Ok();
}

Status RowFileReader::Open(const std::string& path, const std::optional<FileSum>& expected,
                           std::unique_ptr<RowFileReader>* reader) {
  auto opened = std::make_unique<ArrowRowFileReader>(path, expected);
  EMBEDPS_RETURN_IF_ERROR(opened->Init());
  *reader = std::move(opened);
  return Status::Ok();
}

Status ChecksumFile(const std::string& path, FileSum* found) {
  std::shared_ptr<InputFile> file;
  EMBEDPS_RETURN_IF_ERROR(InputFile::Open(path, /*max_whole_bytes=*/0, &file));
  return SumOf(path, *file, found);
}

Status VerifyFile(const std::string& path, const FileSum& expected) {
  FileSum found;
  EMBEDPS_RETURN_IF_ERROR(ChecksumFile(path, &found));
  return CheckSum(path, expected, found);
}

}  // namespace embedps
