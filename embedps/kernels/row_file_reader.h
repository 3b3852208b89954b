// The reader of row files. Plain C++17; row_file_reader.cc is built against Arrow.
#ifndef EMBEDPS_KERNELS_ROW_FILE_READER_H_
#define EMBEDPS_KERNELS_ROW_FILE_READER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "embedps/kernels/row_file.h"
#include "embedps/kernels/status.h"

namespace embedps {

// Reads a row file batch by batch. Not thread-safe.
class RowFileReader {
 public:
  virtual ~RowFileReader() = default;
  static Status Open(const std::string& path, std::unique_ptr<RowFileReader>* reader);
  virtual const RowFileSchema& schema() const = 0;
  virtual int num_batches() const = 0;
  // Fills `columns`, whose vectors are reused; every length and table index is checked.
  virtual Status Read(int batch, RowColumns* columns) = 0;
};

// Reads the whole file once: its size and the xxh3_64 of its bytes.
Status ChecksumFile(const std::string& path, int64_t* bytes, uint64_t* xxh3_64);
// ChecksumFile, and DataLoss naming the path, field, expected and found where either differs.
Status VerifyFile(const std::string& path, int64_t expected_bytes, uint64_t expected_xxh3_64);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_ROW_FILE_READER_H_
