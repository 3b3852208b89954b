// The reader of row files. Plain C++17; row_file_reader.cc is built against Arrow.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_READER_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// A file of at most this many bytes is read whole when it is opened.
inline constexpr int64_t kMaxWholeFileBytes = 4 << 20;

// What a file is known by.
struct FileSum {
  int64_t bytes = 0;
  uint64_t xxh3_64 = 0;  // of all of them
};

// Reads a row file batch by batch. Not thread-safe.
class RowFileReader {
 public:
  virtual ~RowFileReader() = default;
  // With `expected` another file is DataLoss, naming the path, field, expected and found: here if
  // it is read whole, so that no record of it is given; in Finish if it is longer. Its records are
  // in bounds all the same, and its bytes are read once.
  static Status Open(const std::string& path, const std::optional<FileSum>& expected,
                     std::unique_ptr<RowFileReader>* reader);
  virtual const RowFileSchema& schema() const = 0;
  virtual int num_batches() const = 0;
  // Fills `columns`, whose vectors are reused; every length and table index is checked.
  virtual Status Read(int batch, RowColumns* columns) = 0;
  // After the last batch: whether the file is the expected one.
  virtual Status Finish() = 0;
};

// Reads the whole file once.
Status ChecksumFile(const std::string& path, FileSum* found);
// ChecksumFile, and DataLoss naming the path, field, expected and found where either differs.
Status VerifyFile(const std::string& path, const FileSum& expected);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_READER_H_
