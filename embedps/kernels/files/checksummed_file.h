// Where a row file's bytes go: a file on a disk, or an upload to an object store, with their
// checksums. Of the Arrow side: C++20.
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

namespace embedps {

// An Arrow sink that gathers what it is given in a buffer of its own, so that the disk is written
// to in large aligned pieces past the page cache (O_DIRECT, where the file system has it: neither a
// copy nor pages to be made and dropped, and what training reads stays in memory). What does not
// fill the buffer at the end goes by the page cache, as do files smaller than it.
class ChecksummedFile final : public arrow::io::OutputStream {
 public:
  explicit ChecksummedFile(int fd);
  explicit ChecksummedFile(std::shared_ptr<arrow::io::OutputStream> upload);
  ~ChecksummedFile() override;

  using arrow::io::OutputStream::Write;
  arrow::Status Write(const void* data, int64_t nbytes) override;
  // Writes what is left, and syncs it.
  arrow::Status Close() override;
  arrow::Result<int64_t> Tell() const override { return bytes_; }
  bool closed() const override { return closed_; }

  int64_t bytes() const { return bytes_; }
  // Once it is closed: of the whole file, and of its blocks as RowFileInfo has them.
  uint64_t xxh3_64() const { return checksum_.Digest(); }
  std::vector<uint64_t> Blocks() const;

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  // Checksums the buffer's bytes from `hashed_` on, up to its last whole piece, or all.
  void Hash(bool all);
  arrow::Status Flush(bool last);
  void SetDirect(bool direct);
  [[noreturn]] void Tear(const void* data, int64_t nbytes);

  FileDescriptor fd_;
  std::shared_ptr<arrow::io::OutputStream> upload_;
  std::unique_ptr<char[], Free> buffer_;
  int64_t filled_ = 0;  // bytes of the buffer that hold something
  int64_t hashed_ = 0;  // and of these, whose checksums were taken
  int64_t bytes_ = 0;
  bool direct_ = false;
  bool closed_ = false;
  Xxh3 checksum_;
  std::vector<uint64_t> pieces_;  // the checksums of each kFilePieceBytes
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_CHECKSUMMED_FILE_H_
