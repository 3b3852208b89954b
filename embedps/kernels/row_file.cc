#include "embedps/kernels/row_file.h"

#include <arrow/array.h>
#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/ipc/reader.h>
#include <arrow/ipc/writer.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <arrow/util/future.h>
#include <arrow/util/io_util.h>
#include <arrow/util/key_value_metadata.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "embedps/kernels/checksummed_file.h"
#include "embedps/kernels/local_files.h"
#include "embedps/kernels/object_files.h"

namespace embedps {
namespace {

constexpr char kVersionKey[] = "embedps.row_file";
constexpr char kVersion[] = "1";         // all floats as they are
constexpr char kEncodedVersion[] = "2";  // says how they are encoded
constexpr char kRowsKey[] = "embedps.rows";
constexpr char kSlotsKey[] = "embedps.slots";
constexpr char kDimKey[] = "embedps.dim";
constexpr char kNumTablesKey[] = "embedps.num_tables";
constexpr char kTableKeyPrefix[] = "embedps.table.";
constexpr char kReservedPrefix[] = "embedps.";
constexpr int kMaxTables = 32768;         // of an int16 index
constexpr int kNumColumnsAfterSlots = 3;  // last_step, frequency, removed

bool Quantized(const RowFileSchema& schema) { return schema.rows != RowEncoding::kFloat32; }

bool Encoded(const RowFileSchema& schema) {
  return Quantized(schema) || schema.slots != SlotEncoding::kFloat32;
}

// table, id, embedding; of quantized ones embedding_scale, embedding_offset.
int NumColumnsBeforeSlots(const RowFileSchema& schema) { return Quantized(schema) ? 5 : 3; }

// What an Arrow failure means depends on who asked: a reader's is a corrupt file, a writer's is
// I/O.
Status ReadError(const std::string& path, const std::string& where, const arrow::Status& status) {
  return Status::DataLoss("row file " + Quoted(path) + ", " + where +
                          ": cannot be decoded as Arrow IPC: " + status.ToString());
}

Status Mismatch(const std::string& path, const std::string& where, const std::string& expected,
                const std::string& found) {
  return Status::DataLoss("row file " + Quoted(path) + ", " + where + ": expected " + expected +
                          ", found " + found);
}

std::shared_ptr<arrow::DataType> ListType(const std::shared_ptr<arrow::DataType>& item, int width) {
  return arrow::fixed_size_list(arrow::field("item", item, /*nullable=*/false), width);
}

std::shared_ptr<arrow::DataType> EmbeddingType(const RowFileSchema& schema) {
  if (!Quantized(schema)) return ListType(arrow::float32(), schema.dim);
  return ListType(arrow::uint8(), CodeBytes(schema.rows, schema.dim));
}

std::shared_ptr<arrow::DataType> SlotType(const RowFileSchema& schema, int width) {
  const bool halved = schema.slots == SlotEncoding::kBfloat16;
  return ListType(halved ? arrow::uint16() : arrow::float32(), width);
}

Status CheckWidth(const std::string& name, int width) {
  if (width >= 1 && width <= kMaxRowFileWidth) return Status::Ok();
  return Status::InvalidArgument("the width of row file column " + Quoted(name) +
                                 " must be in [1, " + std::to_string(kMaxRowFileWidth) +
                                 "] but is " + std::to_string(width));
}

Status CheckSchema(const RowFileSchema& schema) {
  EMBEDPS_RETURN_IF_ERROR(CheckWidth("embedding", schema.dim));
  std::set<std::string> names = {
      "table",     "id",        "embedding", "embedding_scale", "embedding_offset",
      "last_step", "frequency", "removed"};
  for (const OptimizerSlot& slot : schema.optimizer_slots) {
    EMBEDPS_RETURN_IF_ERROR(CheckWidth(slot.name, slot.width));
    if (slot.name.empty() || !names.insert(slot.name).second) {
      return Status::InvalidArgument(
          "an optimizer slot's name must be non-empty and not another "
          "column's but is " +
          Quoted(slot.name));
    }
  }
  if (schema.tables.empty() || schema.tables.size() > kMaxTables) {
    return Status::InvalidArgument("a row file must have 1 to " + std::to_string(kMaxTables) +
                                   " tables but has " + std::to_string(schema.tables.size()));
  }
  if (std::set<std::string>(schema.tables.begin(), schema.tables.end()).size() !=
      schema.tables.size()) {
    return Status::InvalidArgument("a row file's tables must have different names");
  }
  for (const auto& [key, value] : schema.metadata) {
    if (key.rfind(kReservedPrefix, 0) == 0) {
      return Status::InvalidArgument("metadata keys that begin with '" +
                                     std::string(kReservedPrefix) +
                                     "' are the row file's own: rename " + Quoted(key));
    }
  }
  return Status::Ok();
}

std::shared_ptr<arrow::Schema> ToArrow(const RowFileSchema& schema) {
  arrow::FieldVector fields = {
      arrow::field("table", arrow::dictionary(arrow::int16(), arrow::utf8()), false),
      arrow::field("id", arrow::int64(), false),
      arrow::field("embedding", EmbeddingType(schema), false)};
  if (Quantized(schema)) {
    fields.push_back(arrow::field("embedding_scale", arrow::float32(), false));
    fields.push_back(arrow::field("embedding_offset", arrow::float32(), false));
  }
  for (const OptimizerSlot& slot : schema.optimizer_slots) {
    fields.push_back(arrow::field(slot.name, SlotType(schema, slot.width), false));
  }
  fields.push_back(arrow::field("last_step", arrow::uint32(), false));
  fields.push_back(arrow::field("frequency", arrow::uint32(), false));
  fields.push_back(arrow::field("removed", arrow::boolean(), false));
  auto metadata = std::make_shared<arrow::KeyValueMetadata>();
  metadata->Append(kVersionKey, Encoded(schema) ? kEncodedVersion : kVersion);
  if (Encoded(schema)) {
    metadata->Append(kRowsKey, Name(schema.rows));
    metadata->Append(kSlotsKey, Name(schema.slots));
    metadata->Append(kDimKey, std::to_string(schema.dim));
  }
  // The dictionary reaches the file only with the first record batch, and a delta may have none.
  metadata->Append(kNumTablesKey, std::to_string(schema.tables.size()));
  for (size_t i = 0; i < schema.tables.size(); ++i) {
    metadata->Append(kTableKeyPrefix + std::to_string(i), schema.tables[i]);
  }
  for (const auto& [key, value] : schema.metadata) metadata->Append(key, value);
  return arrow::schema(std::move(fields), std::move(metadata));
}

arrow::Result<std::shared_ptr<arrow::Array>> TablesArray(const std::vector<std::string>& tables) {
  arrow::StringBuilder builder;
  ARROW_RETURN_NOT_OK(builder.AppendValues(tables));
  return builder.Finish();
}

// A view of `rows` * width values from row `first`; the vector must outlive it.
template <typename T>
std::shared_ptr<arrow::Buffer> View(const std::vector<T>& values, int64_t first, int64_t rows,
                                    int width) {
  return std::make_shared<arrow::Buffer>(
      reinterpret_cast<const uint8_t*>(values.data() + first * width),
      static_cast<int64_t>(sizeof(T)) * rows * width);
}

class ArrowRowFileWriter final : public RowFileWriter {
 public:
  ArrowRowFileWriter(std::string path, RowFileSchema schema)
      : path_(std::move(path)), schema_(std::move(schema)), arrow_schema_(ToArrow(schema_)) {}

  ~ArrowRowFileWriter() override {
    if (finished_ || file_ == nullptr) return;
    file_.reset();
    if (!IsObject(path_)) ::unlink(TemporaryPath().c_str());
  }

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
    if (IsObject(path_)) {
      auto upload = OpenObjectOutput(path_);
      if (!upload.ok()) return Wrap(upload.status());
      file_ = std::make_unique<ChecksummedFile>(*std::move(upload));
      return Wrap(Start(codec));
    }
    EMBEDPS_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path_).parent_path()));
    const std::string temporary = TemporaryPath();
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return Errno("cannot create", temporary, errno);
    file_ = std::make_unique<ChecksummedFile>(fd);
    return Wrap(Start(codec));
  }

  Status Append(const RowColumns& columns) override {
    if (writer_ == nullptr || finished_) {
      return Status::InvalidArgument("row file " + Quoted(path_) + " is finished: open another");
    }
    EMBEDPS_RETURN_IF_ERROR(CheckColumns(columns));
    for (int64_t first = 0; first < columns.num_rows; first += kMaxRowFileBatchRows) {
      const int64_t rows = std::min(kMaxRowFileBatchRows, columns.num_rows - first);
      EMBEDPS_RETURN_IF_ERROR(Wrap(WriteBatch(columns, first, rows)));
    }
    return Status::Ok();
  }

  Status Finish(RowFileInfo* info) override {
    if (writer_ == nullptr || finished_) {
      return Status::InvalidArgument("row file " + Quoted(path_) + " is finished: open another");
    }
    EMBEDPS_RETURN_IF_ERROR(Wrap(writer_->Close()));
    writer_.reset();
    EMBEDPS_RETURN_IF_ERROR(Wrap(file_->Close()));
    finished_ = IsObject(path_);
    if (!finished_) EMBEDPS_RETURN_IF_ERROR(MoveIntoPlace());
    info->bytes = file_->bytes();
    info->rows = records_ - removed_;
    info->removed = removed_;
    info->xxh3_64 = file_->xxh3_64();
    info->blocks = file_->Blocks();
    return Status::Ok();
  }

 private:
  std::string TemporaryPath() const { return path_ + ".tmp"; }

  Status MoveIntoPlace() {
    DieIfFault("rename");
    if (std::rename(TemporaryPath().c_str(), path_.c_str()) != 0) {
      return Errno("cannot rename the finished row file to", path_, errno);
    }
    finished_ = true;
    return SyncDirectory(std::filesystem::path(path_).parent_path());
  }

  Status Wrap(const arrow::Status& status) const {
    if (status.ok()) return Status::Ok();
    return Status::IoError("cannot write row file " + Quoted(path_) + ": " + status.ToString());
  }

  arrow::Status Start(arrow::Compression::type codec) {
    ARROW_ASSIGN_OR_RAISE(tables_, TablesArray(schema_.tables));
    auto options = arrow::ipc::IpcWriteOptions::Defaults();
    options.alignment = 64;
    options.use_threads = false;  // shards already write side by side, next to training
    if (codec != arrow::Compression::UNCOMPRESSED) {
      ARROW_ASSIGN_OR_RAISE(options.codec, arrow::util::Codec::Create(codec));
    }
    ARROW_ASSIGN_OR_RAISE(writer_, arrow::ipc::MakeFileWriter(file_.get(), arrow_schema_, options));
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
    if (Quantized(schema_)) {
      Quantize(columns.embedding.data() + first * schema_.dim, rows);
      arrays.push_back(
          Lists<arrow::UInt8Array>(View(codes_, 0, rows, CodeBytes(schema_.rows, schema_.dim)),
                                   arrow_schema_->field(2)->type(), rows));
      arrays.push_back(std::make_shared<arrow::FloatArray>(rows, View(scales_, 0, rows, 1)));
      arrays.push_back(std::make_shared<arrow::FloatArray>(rows, View(offsets_, 0, rows, 1)));
    } else {
      arrays.push_back(Lists<arrow::FloatArray>(View(columns.embedding, first, rows, schema_.dim),
                                                arrow_schema_->field(2)->type(), rows));
    }
    halved_.resize(schema_.optimizer_slots.size());
    for (size_t s = 0; s < schema_.optimizer_slots.size(); ++s) {
      const std::vector<float>& values = columns.optimizer_slots[s];
      const int width = schema_.optimizer_slots[s].width;
      const auto& type = arrow_schema_->field(static_cast<int>(arrays.size()))->type();
      if (schema_.slots == SlotEncoding::kBfloat16) {
        halved_[s].resize(rows * width);
        std::transform(values.data() + first * width, values.data() + (first + rows) * width,
                       halved_[s].data(), ToBfloat16);
        arrays.push_back(Lists<arrow::UInt16Array>(View(halved_[s], 0, rows, width), type, rows));
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

  void Quantize(const float* embeddings, int64_t rows) {
    const int code_bytes = CodeBytes(schema_.rows, schema_.dim);
    codes_.resize(rows * code_bytes);
    scales_.resize(rows);
    offsets_.resize(rows);
    for (int64_t i = 0; i < rows; ++i) {
      EncodeRow(schema_.rows, embeddings + i * schema_.dim, schema_.dim, &codes_[i * code_bytes],
                &scales_[i], &offsets_[i]);
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
  std::shared_ptr<arrow::Array> tables_;
  // Of one batch, encoded.
  std::vector<uint8_t> codes_;
  std::vector<float> scales_, offsets_;
  std::vector<std::vector<uint16_t>> halved_;
  std::unique_ptr<ChecksummedFile> file_;
  std::shared_ptr<arrow::ipc::RecordBatchWriter> writer_;
  int64_t records_ = 0;
  int64_t removed_ = 0;
  bool finished_ = false;
};

std::string FieldName(const std::string& name) { return "field " + Quoted(name); }

Status CheckFieldType(const std::string& path, const arrow::Field& field, const std::string& name,
                      const std::shared_ptr<arrow::DataType>& type) {
  if (field.name() != name) {
    return Mismatch(path, "schema", FieldName(name), FieldName(field.name()));
  }
  if (!field.type()->Equals(*type)) {
    return Mismatch(path, FieldName(name), "type " + type->ToString(),
                    "type " + field.type()->ToString());
  }
  return Status::Ok();
}

// The width of a fixed-size list of numbers of one type, whatever its item is called.
Status ReadWidth(const std::string& path, const arrow::Field& field, const arrow::DataType& item,
                 int* width) {
  const std::string expected =
      "type fixed_size_list<" + item.ToString() + ">[1.." + std::to_string(kMaxRowFileWidth) + "]";
  const arrow::DataType& type = *field.type();
  if (type.id() != arrow::Type::FIXED_SIZE_LIST) {
    return Mismatch(path, FieldName(field.name()), expected, "type " + type.ToString());
  }
  const auto& list = static_cast<const arrow::FixedSizeListType&>(type);
  if (list.value_type()->id() != item.id() || list.list_size() < 1 ||
      list.list_size() > kMaxRowFileWidth) {
    return Mismatch(path, FieldName(field.name()), expected, "type " + type.ToString());
  }
  *width = list.list_size();
  return Status::Ok();
}

Status MetadataMismatch(const std::string& path, const char* key, const std::string& expected,
                        const std::string& found) {
  return Mismatch(path, "schema metadata '" + std::string(key) + "'", expected, found);
}

// What the metadata of a file of version 2 says.
Status ReadEncoding(const std::string& path, std::map<std::string, std::string>& own,
                    RowFileSchema* schema) {
  if (!Parse(own[kRowsKey], &schema->rows).ok()) {
    return MetadataMismatch(path, kRowsKey, "'float32', 'int8' or 'int4'", Quoted(own[kRowsKey]));
  }
  if (!Parse(own[kSlotsKey], &schema->slots).ok()) {
    return MetadataMismatch(path, kSlotsKey, "'float32' or 'bfloat16'", Quoted(own[kSlotsKey]));
  }
  const std::string& dim = own[kDimKey];
  schema->dim = dim.size() <= 5 ? std::atoi(dim.c_str()) : 0;
  if (schema->dim < 1 || schema->dim > kMaxRowFileWidth || dim != std::to_string(schema->dim)) {
    return MetadataMismatch(path, kDimKey, "a number in 1.." + std::to_string(kMaxRowFileWidth),
                            Quoted(dim));
  }
  return Status::Ok();
}

Status ReadMetadata(const std::string& path, const arrow::KeyValueMetadata* metadata,
                    RowFileSchema* schema) {
  std::map<std::string, std::string> own;
  if (metadata != nullptr) {
    for (int64_t i = 0; i < metadata->size(); ++i) {
      const bool reserved = metadata->key(i).rfind(kReservedPrefix, 0) == 0;
      (reserved ? own : schema->metadata)[metadata->key(i)] = metadata->value(i);
    }
  }
  const auto version = own.find(kVersionKey);
  const std::string version_found = version == own.end() ? "none" : Quoted(version->second);
  if (version_found == Quoted(kEncodedVersion)) {
    EMBEDPS_RETURN_IF_ERROR(ReadEncoding(path, own, schema));
  } else if (version_found != Quoted(kVersion)) {
    return MetadataMismatch(path, kVersionKey, Quoted(kVersion) + " or " + Quoted(kEncodedVersion),
                            version_found);
  }
  for (int i = 0; i <= kMaxTables; ++i) {
    const auto name = own.find(kTableKeyPrefix + std::to_string(i));
    if (name == own.end()) break;
    schema->tables.push_back(name->second);
  }
  const std::string count = own[kNumTablesKey];
  if (schema->tables.empty() || schema->tables.size() > kMaxTables ||
      count != std::to_string(schema->tables.size())) {
    return MetadataMismatch(
        path, kNumTablesKey,
        std::to_string(schema->tables.size()) + " (in 1.." + std::to_string(kMaxTables) + ")",
        Quoted(count));
  }
  return Status::Ok();
}

Status FromArrow(const std::string& path, const arrow::Schema& arrow_schema,
                 RowFileSchema* schema) {
  EMBEDPS_RETURN_IF_ERROR(ReadMetadata(path, arrow_schema.metadata().get(), schema));
  const int num_fields = arrow_schema.num_fields();
  const int before_slots = NumColumnsBeforeSlots(*schema);
  if (num_fields < before_slots + kNumColumnsAfterSlots) {
    return Mismatch(path, "schema",
                    "at least " + std::to_string(before_slots + kNumColumnsAfterSlots) + " fields",
                    std::to_string(num_fields));
  }
  const auto check = [&](int i, const char* name, const std::shared_ptr<arrow::DataType>& type) {
    return CheckFieldType(path, *arrow_schema.field(i), name, type);
  };
  EMBEDPS_RETURN_IF_ERROR(check(0, "table", arrow::dictionary(arrow::int16(), arrow::utf8())));
  EMBEDPS_RETURN_IF_ERROR(check(1, "id", arrow::int64()));
  const arrow::Field& embedding = *arrow_schema.field(2);
  if (embedding.name() != "embedding") {
    return Mismatch(path, "schema", FieldName("embedding"), FieldName(embedding.name()));
  }
  if (Quantized(*schema)) {
    int width;
    EMBEDPS_RETURN_IF_ERROR(ReadWidth(path, embedding, *arrow::uint8(), &width));
    if (width != CodeBytes(schema->rows, schema->dim)) {
      return Mismatch(path, FieldName("embedding"),
                      std::to_string(CodeBytes(schema->rows, schema->dim)) + " codes' bytes",
                      std::to_string(width));
    }
    EMBEDPS_RETURN_IF_ERROR(check(3, "embedding_scale", arrow::float32()));
    EMBEDPS_RETURN_IF_ERROR(check(4, "embedding_offset", arrow::float32()));
  } else {
    EMBEDPS_RETURN_IF_ERROR(ReadWidth(path, embedding, *arrow::float32(), &schema->dim));
  }
  const auto slot_item =
      schema->slots == SlotEncoding::kBfloat16 ? arrow::uint16() : arrow::float32();
  for (int i = before_slots; i < num_fields - kNumColumnsAfterSlots; ++i) {
    OptimizerSlot slot;
    slot.name = arrow_schema.field(i)->name();
    EMBEDPS_RETURN_IF_ERROR(ReadWidth(path, *arrow_schema.field(i), *slot_item, &slot.width));
    schema->optimizer_slots.push_back(std::move(slot));
  }
  EMBEDPS_RETURN_IF_ERROR(check(num_fields - 3, "last_step", arrow::uint32()));
  EMBEDPS_RETURN_IF_ERROR(check(num_fields - 2, "frequency", arrow::uint32()));
  return check(num_fields - 1, "removed", arrow::boolean());
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

Status RowFileWriter::Open(const std::string& path, const RowFileSchema& schema,
                           const std::string& compression, std::unique_ptr<RowFileWriter>* writer) {
  EMBEDPS_RETURN_IF_ERROR(CheckSchema(schema));
  auto opened = std::make_unique<ArrowRowFileWriter>(path, schema);
  EMBEDPS_RETURN_IF_ERROR(opened->Init(compression));
  *writer = std::move(opened);
  return Status::Ok();
}

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
