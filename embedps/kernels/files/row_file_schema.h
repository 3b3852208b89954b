// The Arrow side of a row file's schema: how what row_file.h says is kept in a file, and the checks
// of what a file says. C++20.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_SCHEMA_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_SCHEMA_H_

#include <arrow/type_fwd.h>

#include <memory>
#include <string>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Whether embeddings are codes with a scale and an offset.
bool Quantized(const RowFileSchema& schema);

// table, id, embedding; of quantized ones embedding_scale, embedding_offset.
int NumColumnsBeforeSlots(const RowFileSchema& schema);

// "field 'name'", as errors have it.
std::string FieldName(const std::string& name);

// DataLoss: what a file must hold there, and what it does.
Status Mismatch(const std::string& path, const std::string& where, const std::string& expected,
                const std::string& found);

// InvalidArgument where a schema that a writer was given cannot be kept.
Status CheckSchema(const RowFileSchema& schema);

std::shared_ptr<arrow::Schema> ToArrow(const RowFileSchema& schema);

// DataLoss where the schema of the file at `path` is not a row file's.
Status FromArrow(const std::string& path, const arrow::Schema& arrow_schema, RowFileSchema* schema);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_SCHEMA_H_
