// The writer of row files. Plain C++17; row_file_writer.cc is built against Arrow.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_WRITER_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_WRITER_H_

#include <memory>
#include <string>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Writes to `path` + ".tmp", checksums what it writes, fsyncs, renames on Finish. Where `path` is a
// URL of an object store it is uploaded by parts, and appears on Finish. Not thread-safe.
class RowFileWriter {
 public:
  virtual ~RowFileWriter() = default;  // without Finish: nothing is left
  // compression: "none", "lz4" or "zstd". Creates the directories of `path` that are missing.
  static Status Open(const std::string& path, const RowFileSchema& schema,
                     const std::string& compression, std::unique_ptr<RowFileWriter>* writer);
  // Cuts `columns` into record batches of at most kMaxRowFileBatchRows.
  virtual Status Append(const RowColumns& columns) = 0;
  virtual Status Finish(RowFileInfo* info) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_WRITER_H_
