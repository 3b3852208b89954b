// Converts a row file's schema to Arrow and back, with checks. C++20.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_SCHEMA_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_SCHEMA_H_

#include <arrow/type_fwd.h>

#include <memory>
#include <string>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Whether embeddings are stored as codes with a scale and an offset.
bool IsQuantized(const RowFileSchema& schema);

// Counts table, id, embedding and, of a quantized file, embedding_scale and embedding_offset.
int NumColumnsBeforeOptimizerSlots(const RowFileSchema& schema);

// Returns "field 'name'", for messages.
std::string FieldName(const std::string& name);

// Returns DataLoss that says what a file must hold at a place, and what it holds.
Status Mismatch(const std::string& path, const std::string& where, const std::string& expected,
                const std::string& found);

// Returns InvalidArgument for a schema that a file cannot store.
Status CheckSchema(const RowFileSchema& schema);

std::shared_ptr<arrow::Schema> ToArrow(const RowFileSchema& schema);

// Reads a file's schema. Returns DataLoss if it is not a row file's. `path` is for messages.
Status FromArrow(const std::string& path, const arrow::Schema& arrow_schema, RowFileSchema* schema);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_SCHEMA_H_
