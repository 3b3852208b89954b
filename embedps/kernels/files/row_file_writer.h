// The writer of row files. Plain C++17; row_file_writer.cc is built against Arrow.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_WRITER_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_WRITER_H_

#include <memory>
#include <string>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Writes to `path` + ".tmp" and takes checksums. Finish syncs and renames the file. If `path` is a
// URL of an object store, it uploads in parts, and the object appears on Finish. Not thread-safe.
class RowFileWriter {
 public:
  virtual ~RowFileWriter() = default;  // without Finish, removes the file
  // `compression` is "none", "lz4" or "zstd". Creates missing directories of `path`.
  static Status Open(const std::string& path, const RowFileSchema& schema,
                     const std::string& compression, std::unique_ptr<RowFileWriter>* writer);
  // Splits `columns` into record batches of at most kMaxRowFileBatchRows.
  virtual Status Append(const RowColumns& columns) = 0;
  virtual Status Finish(RowFileInfo* info) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_WRITER_H_
