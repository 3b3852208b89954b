// A checkpoint's Arrow file while it is written. C++20.
#ifndef EMBEDPS_KERNELS_FILES_OUTPUT_FILE_H_
#define EMBEDPS_KERNELS_FILES_OUTPUT_FILE_H_

#include <arrow/status.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/files/checksummed_file.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Writes to `path` + ".tmp" and takes checksums. Finish syncs and renames the file. If `path` is a
// URL of an object store, it uploads in parts, and the object appears on Finish.
class OutputFile {
 public:
  // If `hidden`, the temporary file's name begins with "_": readers of a directory skip it.
  // `buffer_bytes` is a multiple of kFilePieceBytes.
  explicit OutputFile(std::string path, bool hidden = false,
                      int64_t buffer_bytes = ChecksummedFile::kBufferBytes)
      : path_(std::move(path)), hidden_(hidden), buffer_bytes_(buffer_bytes) {}
  ~OutputFile();  // without Finish, removes the file

  // Creates the file, and missing directories of its path.
  Status Open();
  ChecksummedFile* stream() const { return file_.get(); }
  bool finished() const { return finished_; }
  // Fills the info's size and checksums.
  Status Finish(RowFileInfo* info);
  // Turns Arrow's failure to write into ours.
  Status Wrap(const arrow::Status& status) const;

 private:
  std::string TemporaryPath() const;
  Status MoveIntoPlace();

  const std::string path_;
  const bool hidden_;
  const int64_t buffer_bytes_;
  std::vector<std::filesystem::path> unsynced_;
  std::unique_ptr<ChecksummedFile> file_;
  bool finished_ = false;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_OUTPUT_FILE_H_
