#include "embedps/kernels/row_file_reader.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/ipc/reader.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/future.h>
#include <arrow/util/io_util.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "embedps/kernels/local_files.h"
#include "embedps/kernels/object_files.h"
#include "embedps/kernels/row_file_schema.h"
#include "embedps/kernels/xxh3.h"

namespace embedps {
namespace {

// An Arrow failure of a reader: the file is not what was written.
Status ReadError(const std::string& path, const std::string& where, const arrow::Status& status) {
  return Status::DataLoss("row file " + Quoted(path) + ", " + where +
                          ": cannot be decoded as Arrow IPC: " + status.ToString());
}

// A file that is read where it is asked, on the asking thread: Arrow's own may be read by its I/O
// threads, which then may hold the reader, and the memory pool with it, past the return of Open.
// Not mapped: one that is truncated meanwhile ends in a Status, not in a signal.
class InputFile final : public arrow::io::RandomAccessFile {
 public:
  static Status Open(const std::string& path, std::shared_ptr<InputFile>* file) {
    auto opened = std::make_shared<InputFile>();
    if (IsObject(path)) {
      auto object = OpenObjectInput(path);
      if (!object.ok()) return NotOpened(path, object.status());
      auto size = (*object)->GetSize();
      if (!size.ok()) return NotOpened(path, size.status());
      opened->object_ = *std::move(object);
      opened->size_ = *size;
    } else {
      opened->fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (opened->fd_.get() < 0) return Errno("cannot open", path, errno);
      struct stat attributes;
      if (::fstat(opened->fd_.get(), &attributes) != 0) return Errno("cannot stat", path, errno);
      opened->size_ = attributes.st_size;
    }
    *file = std::move(opened);
    return Status::Ok();
  }

  ~InputFile() override { (void)Close(); }

  arrow::Result<int64_t> ReadAt(int64_t position, int64_t nbytes, void* out) override {
    if (position < 0 || nbytes < 0) return arrow::Status::Invalid("a read before the beginning");
    nbytes = std::min(nbytes, std::max<int64_t>(0, size_ - position));
    if (object_ != nullptr) return object_->ReadAt(position, nbytes, out);
    int64_t done = 0;
    while (done < nbytes) {
      const ssize_t count = ::pread(fd_.get(), static_cast<char*>(out) + done,
                                    static_cast<size_t>(nbytes - done), position + done);
      if (count == 0) break;
      if (count < 0) {
        if (errno == EINTR) continue;
        return arrow::Status::IOError("read at byte ", position + done, ": ", std::strerror(errno));
      }
      done += count;
    }
    return done;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t nbytes) override {
    // What a damaged footer asks for is not allocated beyond what there is.
    nbytes = std::min(nbytes, std::max<int64_t>(0, size_ - std::max<int64_t>(0, position)));
    ARROW_ASSIGN_OR_RAISE(auto buffer,
                          arrow::AllocateResizableBuffer(std::max<int64_t>(0, nbytes)));
    ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position, nbytes, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(count, /*shrink_to_fit=*/false));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext&,
                                                          int64_t position,
                                                          int64_t nbytes) override {
    return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(ReadAt(position, nbytes));
  }
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext&,
                                                          int64_t position, int64_t nbytes,
                                                          bool allow_short_read) override {
    return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(
        arrow::io::RandomAccessFile::ReadAt(position, nbytes, allow_short_read));
  }
  arrow::Result<int64_t> Read(int64_t nbytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position_, nbytes, out));
    position_ += count;
    return count;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t nbytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, nbytes));
    position_ += buffer->size();
    return buffer;
  }
  arrow::Status Seek(int64_t position) override {
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Result<int64_t> GetSize() override { return size_; }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }

 private:
  static Status NotOpened(const std::string& path, const arrow::Status& status) {
    const std::string message = "cannot open " + Quoted(path) + ": " + status.ToString();
    // Arrow says so of an object that is not there; it has no code of its own for it.
    const auto* detail = status.detail().get();
    const bool absent = detail != nullptr && arrow::internal::ErrnoFromStatus(status) == ENOENT;
    return absent ? Status::NotFound(message) : Status::IoError(message);
  }

  FileDescriptor fd_{-1};
  std::shared_ptr<arrow::io::RandomAccessFile> object_;
  int64_t size_ = 0;
  int64_t position_ = 0;
  bool closed_ = false;
};

class ArrowRowFileReader final : public RowFileReader {
 public:
  explicit ArrowRowFileReader(std::string path)
      : path_(std::move(path)), pool_(arrow::default_memory_pool()) {}

  Status Init() {
    EMBEDPS_RETURN_IF_ERROR(InputFile::Open(path_, &file_));
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.use_threads = false;  // shards load their files side by side
    auto opened = arrow::ipc::RecordBatchFileReader::Open(file_, options);
    if (!opened.ok()) return ReadError(path_, "footer", opened.status());
    EMBEDPS_RETURN_IF_ERROR(FromArrow(path_, *(*opened)->schema(), &schema_));
    // Now that a batch's size is known, decompression gets no more memory than one may need.
    capped_pool_ = std::make_unique<arrow::CappedMemoryPool>(&pool_, MaxBatchBytes());
    options.memory_pool = capped_pool_.get();
    opened = arrow::ipc::RecordBatchFileReader::Open(file_, options);
    if (!opened.ok()) return ReadError(path_, "footer", opened.status());
    reader_ = *std::move(opened);
    return Status::Ok();
  }

  const RowFileSchema& schema() const override { return schema_; }
  int num_batches() const override { return reader_->num_record_batches(); }

  Status Read(int index, RowColumns* columns) override {
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
      // Checks that every buffer holds the bytes that its length asks for.
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
    const int before_slots = NumColumnsBeforeSlots(schema_);
    const int num_slots = static_cast<int>(schema_.optimizer_slots.size());
    columns->optimizer_slots.resize(num_slots);
    for (int s = 0; s < num_slots; ++s) {
      EMBEDPS_RETURN_IF_ERROR(ReadSlot(batch, before_slots + s, schema_.optimizer_slots[s].width,
                                       where, &columns->optimizer_slots[s]));
    }
    const int next = before_slots + num_slots;
    Copy<arrow::UInt32Array>(*batch.column(next), &columns->last_step);
    Copy<arrow::UInt32Array>(*batch.column(next + 1), &columns->frequency);
    const auto& removed = static_cast<const arrow::BooleanArray&>(*batch.column(next + 2));
    columns->removed.resize(rows);
    for (int64_t i = 0; i < rows; ++i) columns->removed[i] = removed.Value(i) ? 1 : 0;
    return Status::Ok();
  }

 private:
  int64_t MaxBatchBytes() const {
    int64_t floats = schema_.dim;
    for (const OptimizerSlot& slot : schema_.optimizer_slots) floats += slot.width;
    int64_t table_bytes = 0;
    for (const std::string& table : schema_.tables) table_bytes += table.size() + sizeof(int32_t);
    // table, id, scale, offset, last_step, frequency, removed; every buffer rounded up; the
    // messages' own bytes.
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

  // The values of a column of lists of `width` numbers.
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
    if (!Quantized(schema_)) {
      const float* first = nullptr;
      EMBEDPS_RETURN_IF_ERROR(Values<arrow::FloatArray>(batch, 2, dim, where, &first));
      out->assign(first, first + rows * dim);
      return Status::Ok();
    }
    const int code_bytes = CodeBytes(schema_.rows, dim);
    const uint8_t* codes = nullptr;
    EMBEDPS_RETURN_IF_ERROR(Values<arrow::UInt8Array>(batch, 2, code_bytes, where, &codes));
    const float* scales = static_cast<const arrow::FloatArray&>(*batch.column(3)).raw_values();
    const float* offsets = static_cast<const arrow::FloatArray&>(*batch.column(4)).raw_values();
    out->resize(rows * dim);
    for (int64_t i = 0; i < rows; ++i) {
      DecodeRow(schema_.rows, codes + i * code_bytes, scales[i], offsets[i], dim,
                out->data() + i * dim);
    }
    return Status::Ok();
  }

  Status ReadSlot(const arrow::RecordBatch& batch, int column, int width, const std::string& where,
                  std::vector<float>* out) const {
    const int64_t count = batch.num_rows() * width;
    if (schema_.slots == SlotEncoding::kFloat32) {
      const float* first = nullptr;
      EMBEDPS_RETURN_IF_ERROR(Values<arrow::FloatArray>(batch, column, width, where, &first));
      out->assign(first, first + count);
      return Status::Ok();
    }
    const uint16_t* first = nullptr;
    EMBEDPS_RETURN_IF_ERROR(Values<arrow::UInt16Array>(batch, column, width, where, &first));
    out->resize(count);
    std::transform(first, first + count, out->data(), FromBfloat16);
    return Status::Ok();
  }

  const std::string path_;
  RowFileSchema schema_;
  arrow::ProxyMemoryPool pool_;  // counts this reader's own bytes, which the cap is on
  std::unique_ptr<arrow::CappedMemoryPool> capped_pool_;
  std::shared_ptr<InputFile> file_;
  std::shared_ptr<arrow::ipc::RecordBatchFileReader> reader_;
};

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

Status RowFileReader::Open(const std::string& path, std::unique_ptr<RowFileReader>* reader) {
  auto opened = std::make_unique<ArrowRowFileReader>(path);
  EMBEDPS_RETURN_IF_ERROR(opened->Init());
  *reader = std::move(opened);
  return Status::Ok();
}

Status ChecksumFile(const std::string& path, int64_t* bytes, uint64_t* xxh3_64) {
  std::shared_ptr<InputFile> file;
  EMBEDPS_RETURN_IF_ERROR(InputFile::Open(path, &file));
  Xxh3 checksum;
  std::vector<char> buffer(1 << 20);
  *bytes = 0;
  while (true) {
    const auto count = file->Read(static_cast<int64_t>(buffer.size()), buffer.data());
    if (!count.ok()) return Status::IoError(Quoted(path) + ": " + count.status().ToString());
    if (*count == 0) break;
    checksum.Update(buffer.data(), static_cast<size_t>(*count));
    *bytes += *count;
  }
  *xxh3_64 = checksum.Digest();
  return Status::Ok();
}

Status VerifyFile(const std::string& path, int64_t expected_bytes, uint64_t expected_xxh3_64) {
  int64_t bytes = 0;
  uint64_t xxh3_64 = 0;
  EMBEDPS_RETURN_IF_ERROR(ChecksumFile(path, &bytes, &xxh3_64));
  if (bytes != expected_bytes) {
    return Mismatch(path, "field 'bytes'", std::to_string(expected_bytes), std::to_string(bytes));
  }
  if (xxh3_64 != expected_xxh3_64) {
    return Mismatch(path, "field 'xxh3_64'", Hex(expected_xxh3_64), Hex(xxh3_64));
  }
  return Status::Ok();
}

}  // namespace embedps
