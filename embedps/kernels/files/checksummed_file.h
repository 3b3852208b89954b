// The output of a row file, with checksums: a file on a disk or an upload to an object store. Uses
// Arrow: C++20.
#ifndef EMBEDPS_KERNELS_FILES_CHECKSUMMED_FILE_H_
#define EMBEDPS_KERNELS_FILES_CHECKSUMMED_FILE_H_

#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/xxh3.h"
#include "embedps/kernels/runtime/constants.h"

namespace embedps {

// An Arrow sink that collects data in its own buffer. It writes to the disk in large aligned pieces
// and bypasses the page cache where the file system supports O_DIRECT. That saves a copy and the
// creation of pages, and leaves in memory what training reads. A last part that does not fill the
// buffer goes through the page cache, and so do files smaller than the buffer.
class ChecksummedFile final : public arrow::io::OutputStream {
 public:
  static constexpr int64_t kBufferBytes = 16 * kFilePieceBytes;

  ChecksummedFile(int fd, int64_t buffer_bytes);
  ChecksummedFile(std::shared_ptr<arrow::io::OutputStream> upload, int64_t buffer_bytes);
  ~ChecksummedFile() override;

  using arrow::io::OutputStream::Write;
  arrow::Status Write(const void* data, int64_t nbytes) override;
  // Writes the rest of the buffer and syncs the file.
  arrow::Status Close() override;
  arrow::Result<int64_t> Tell() const override { return bytes_; }
  bool closed() const override { return closed_; }

  int64_t bytes() const { return bytes_; }
  // After Close: the checksum of the whole file, and those of its blocks as in RowFileInfo.
  uint64_t xxh3_64() const { return checksum_.Digest(); }
  std::vector<uint64_t> Blocks() const;

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  // Takes checksums of the buffer from `hashed_` on, up to its last whole piece or to its end.
  void Hash(bool all);
  arrow::Status Flush(bool last);
  void SetDirect(bool direct);
  // Writes half of the data and kills the process, for a test.
  [[noreturn]] void Tear(const void* data, int64_t nbytes);

  FileDescriptor fd_;
  std::shared_ptr<arrow::io::OutputStream> upload_;
  const int64_t buffer_bytes_;
  std::unique_ptr<char[], Free> buffer_;
  int64_t filled_ = 0;  // bytes in the buffer
  int64_t hashed_ = 0;  // bytes of these whose checksums are taken
  int64_t bytes_ = 0;
  bool direct_ = false;
  bool closed_ = false;
  Xxh3 checksum_;
  std::vector<uint64_t> pieces_;  // the checksum of each kFilePieceBytes
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_CHECKSUMMED_FILE_H_
