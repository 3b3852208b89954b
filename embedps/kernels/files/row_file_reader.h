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

// Open reads a file of at most this many bytes as a whole.
inline constexpr int64_t kMaxWholeFileBytes = 4 << 20;

// A file's size and checksum.
struct FileSum {
  int64_t bytes = 0;
  uint64_t xxh3_64 = 0;  // of the whole file
};

// Reads a row file batch by batch. Not thread-safe.
class RowFileReader {
 public:
  virtual ~RowFileReader() = default;
  // With `expected`, a file that differs is DataLoss; the message names path, field, expected and
  // found. Open finds that for a file that it reads whole, before any record is returned, and
  // Finish for a longer file. Records are in bounds in any case. The file is read once.
  static Status Open(const std::string& path, const std::optional<FileSum>& expected,
                     std::unique_ptr<RowFileReader>* reader);
  virtual const RowFileSchema& schema() const = 0;
  virtual int num_batches() const = 0;
  // Fills `columns` and reuses its vectors. Checks every length and table index.
  virtual Status Read(int batch, RowColumns* columns) = 0;
  // Checks after the last batch that the file is the expected one.
  virtual Status Finish() = 0;
};

// Computes the size and checksum of a file; reads it once.
Status ChecksumFile(const std::string& path, FileSum* found);
// Checks a size and checksum that were found. A difference is DataLoss, as of VerifyFile.
Status CheckSum(const std::string& path, const FileSum& expected, const FileSum& found);
// Checks a file's size and checksum. A difference is DataLoss; the message names path, field,
// expected and found.
Status VerifyFile(const std::string& path, const FileSum& expected);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_READER_H_
