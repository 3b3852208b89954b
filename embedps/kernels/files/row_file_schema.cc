#include "embedps/kernels/files/row_file_schema.h"

#include <arrow/type.h>
#include <arrow/util/key_value_metadata.h>

#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "embedps/kernels/files/local_files.h"

namespace embedps {
namespace {

constexpr char kReservedPrefix[] = "embedps.";
constexpr int kNumColumnsAfterOptimizerSlots = 3;  // last_step, frequency, removed

bool HasEncoding(const RowFileSchema& schema) {
  return schema.embedding_encoding != EmbeddingEncoding::kFloat32 ||
         schema.optimizer_slot_encoding != OptimizerSlotEncoding::kFloat32;
}

std::shared_ptr<arrow::DataType> ListType(const std::shared_ptr<arrow::DataType>& item, int width) {
  return arrow::fixed_size_list(arrow::field("item", item, /*nullable=*/false), width);
}

// The numbers that an embedding's list has.
std::shared_ptr<arrow::DataType> EmbeddingItem(EmbeddingEncoding encoding) {
  switch (encoding) {
    case EmbeddingEncoding::kFloat32:
      return arrow::float32();
    case EmbeddingEncoding::kInt8:
    case EmbeddingEncoding::kInt4:
      return arrow::uint8();
    case EmbeddingEncoding::kBfloat16:
      return arrow::uint16();
    case EmbeddingEncoding::kFloat16:
      return arrow::float16();
  }
  return arrow::float32();
}

std::shared_ptr<arrow::DataType> EmbeddingType(const RowFileSchema& schema) {
  return ListType(
      EmbeddingItem(schema.embedding_encoding),
      IsQuantized(schema) ? CodeBytes(schema.embedding_encoding, schema.dim) : schema.dim);
}

std::shared_ptr<arrow::DataType> OptimizerSlotType(const RowFileSchema& schema, int width) {
  const bool halved = schema.optimizer_slot_encoding == OptimizerSlotEncoding::kBfloat16;
  return ListType(halved ? arrow::uint16() : arrow::float32(), width);
}

Status CheckWidth(const std::string& name, int width) {
  if (width >= 1 && width <= kMaxRowFileWidth) return Status::Ok();
  return Status::InvalidArgument("the width of row file column " + Quoted(name) +
                                 " must be in [1, " + std::to_string(kMaxRowFileWidth) +
                                 "] but is " + std::to_string(width));
}

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

// Reads the width of a fixed-size list of numbers of one type, whatever name its items have.
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

// Reads the encoding from the metadata of a file of version 2.
Status ReadEncoding(const std::string& path, std::map<std::string, std::string>& own,
                    RowFileSchema* schema) {
  if (!Parse(own[kRowFileEmbeddingEncodingKey], &schema->embedding_encoding).ok()) {
    return MetadataMismatch(path, kRowFileEmbeddingEncodingKey,
                            "'float32', 'int8', 'int4', 'bfloat16' or 'float16'",
                            Quoted(own[kRowFileEmbeddingEncodingKey]));
  }
  if (!Parse(own[kRowFileOptimizerSlotEncodingKey], &schema->optimizer_slot_encoding).ok()) {
    return MetadataMismatch(path, kRowFileOptimizerSlotEncodingKey, "'float32' or 'bfloat16'",
                            Quoted(own[kRowFileOptimizerSlotEncodingKey]));
  }
  const std::string& dim = own[kRowFileDimKey];
  schema->dim = dim.size() <= 5 ? std::atoi(dim.c_str()) : 0;
  if (schema->dim < 1 || schema->dim > kMaxRowFileWidth || dim != std::to_string(schema->dim)) {
    return MetadataMismatch(path, kRowFileDimKey,
                            "a number in 1.." + std::to_string(kMaxRowFileWidth), Quoted(dim));
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
  const auto version = own.find(kRowFileVersionKey);
  const std::string version_found = version == own.end() ? "none" : Quoted(version->second);
  if (version_found == Quoted(kRowFileEncodedVersion)) {
    EMBEDPS_RETURN_IF_ERROR(ReadEncoding(path, own, schema));
  } else if (version_found != Quoted(kRowFileVersion)) {
    return MetadataMismatch(path, kRowFileVersionKey,
                            Quoted(kRowFileVersion) + " or " + Quoted(kRowFileEncodedVersion),
                            version_found);
  }
  for (int i = 0; i <= kMaxRowFileTables; ++i) {
    const auto name = own.find(kRowFileTableKeyPrefix + std::to_string(i));
    if (name == own.end()) break;
    schema->tables.push_back(name->second);
  }
  const std::string count = own[kRowFileNumTablesKey];
  if (schema->tables.empty() || schema->tables.size() > kMaxRowFileTables ||
      count != std::to_string(schema->tables.size())) {
    return MetadataMismatch(path, kRowFileNumTablesKey,
                            std::to_string(schema->tables.size()) + " (in 1.." +
                                std::to_string(kMaxRowFileTables) + ")",
                            Quoted(count));
  }
  return Status::Ok();
}

}  // namespace

bool IsQuantized(const RowFileSchema& schema) {
  return schema.embedding_encoding == EmbeddingEncoding::kInt8 ||
         schema.embedding_encoding == EmbeddingEncoding::kInt4;
}

int NumColumnsBeforeOptimizerSlots(const RowFileSchema& schema) {
  return IsQuantized(schema) ? 5 : 3;
}

std::string FieldName(const std::string& name) { return "field " + Quoted(name); }

Status Mismatch(const std::string& path, const std::string& where, const std::string& expected,
                const std::string& found) {
  return Status::DataLoss("row file " + Quoted(path) + ", " + where + ": expected " + expected +
                          ", found " + found);
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
  if (schema.tables.empty() || schema.tables.size() > kMaxRowFileTables) {
    return Status::InvalidArgument("a row file must have 1 to " +
                                   std::to_string(kMaxRowFileTables) + " tables but has " +
                                   std::to_string(schema.tables.size()));
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
  if (IsQuantized(schema)) {
    fields.push_back(arrow::field("embedding_scale", arrow::float32(), false));
    fields.push_back(arrow::field("embedding_offset", arrow::float32(), false));
  }
  for (const OptimizerSlot& slot : schema.optimizer_slots) {
    fields.push_back(arrow::field(slot.name, OptimizerSlotType(schema, slot.width), false));
  }
  fields.push_back(arrow::field("last_step", arrow::uint32(), false));
  fields.push_back(arrow::field("frequency", arrow::uint32(), false));
  fields.push_back(arrow::field("removed", arrow::boolean(), false));
  auto metadata = std::make_shared<arrow::KeyValueMetadata>();
  metadata->Append(kRowFileVersionKey,
                   HasEncoding(schema) ? kRowFileEncodedVersion : kRowFileVersion);
  if (HasEncoding(schema)) {
    metadata->Append(kRowFileEmbeddingEncodingKey, Name(schema.embedding_encoding));
    metadata->Append(kRowFileOptimizerSlotEncodingKey, Name(schema.optimizer_slot_encoding));
    metadata->Append(kRowFileDimKey, std::to_string(schema.dim));
  }
  // The table names are metadata too: the dictionary comes with the first record batch, and a delta
  // may have none.
  metadata->Append(kRowFileNumTablesKey, std::to_string(schema.tables.size()));
  for (size_t i = 0; i < schema.tables.size(); ++i) {
    metadata->Append(kRowFileTableKeyPrefix + std::to_string(i), schema.tables[i]);
  }
  for (const auto& [key, value] : schema.metadata) metadata->Append(key, value);
  return arrow::schema(std::move(fields), std::move(metadata));
}

Status FromArrow(const std::string& path, const arrow::Schema& arrow_schema,
                 RowFileSchema* schema) {
  EMBEDPS_RETURN_IF_ERROR(ReadMetadata(path, arrow_schema.metadata().get(), schema));
  const int num_fields = arrow_schema.num_fields();
  const int before_optimizer_slots = NumColumnsBeforeOptimizerSlots(*schema);
  if (num_fields < before_optimizer_slots + kNumColumnsAfterOptimizerSlots) {
    return Mismatch(path, "schema",
                    "at least " +
                        std::to_string(before_optimizer_slots + kNumColumnsAfterOptimizerSlots) +
                        " fields",
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
  if (IsQuantized(*schema)) {
    int width;
    EMBEDPS_RETURN_IF_ERROR(ReadWidth(path, embedding, *arrow::uint8(), &width));
    if (width != CodeBytes(schema->embedding_encoding, schema->dim)) {
      return Mismatch(
          path, FieldName("embedding"),
          std::to_string(CodeBytes(schema->embedding_encoding, schema->dim)) + " codes' bytes",
          std::to_string(width));
    }
    EMBEDPS_RETURN_IF_ERROR(check(3, "embedding_scale", arrow::float32()));
    EMBEDPS_RETURN_IF_ERROR(check(4, "embedding_offset", arrow::float32()));
  } else {
    const int dim = schema->dim;  // 0 if only the column's type tells it
    EMBEDPS_RETURN_IF_ERROR(
        ReadWidth(path, embedding, *EmbeddingItem(schema->embedding_encoding), &schema->dim));
    if (dim != 0 && schema->dim != dim) {
      return Mismatch(path, FieldName("embedding"), std::to_string(dim) + " numbers",
                      std::to_string(schema->dim));
    }
  }
  const auto optimizer_slot_item =
      schema->optimizer_slot_encoding == OptimizerSlotEncoding::kBfloat16 ? arrow::uint16()
                                                                          : arrow::float32();
  for (int i = before_optimizer_slots; i < num_fields - kNumColumnsAfterOptimizerSlots; ++i) {
    OptimizerSlot slot;
    slot.name = arrow_schema.field(i)->name();
    EMBEDPS_RETURN_IF_ERROR(
        ReadWidth(path, *arrow_schema.field(i), *optimizer_slot_item, &slot.width));
    schema->optimizer_slots.push_back(std::move(slot));
  }
  EMBEDPS_RETURN_IF_ERROR(check(num_fields - 3, "last_step", arrow::uint32()));
  EMBEDPS_RETURN_IF_ERROR(check(num_fields - 2, "frequency", arrow::uint32()));
  return check(num_fields - 1, "removed", arrow::boolean());
}

}  // namespace embedps
