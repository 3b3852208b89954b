// Where a row file's bytes come from: a file on a disk or an object of a store, checksummed as they
// are read. Of the Arrow side: C++20.
#ifndef EMBEDPS_KERNELS_FILES_INPUT_FILE_H_
#define EMBEDPS_KERNELS_FILES_INPUT_FILE_H_

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <cstdint>
#include <memory>
#include <string>

#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/xxh3.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// A file that is read where it is asked, on the asking thread: Arrow's own may be read by its I/O
// threads, which then may hold the reader, and the memory pool with it, past the return of Open.
// Not mapped: one that is truncated meanwhile ends in a Status, not in a signal.
//
// A small file is read whole when it is opened, in one request of the disk, and what is read of it
// is a view. Of a larger one the checksum is taken while it is read from its beginning on, so that
// to verify it is not to read it a second time. The kernel reads ahead by itself; asking it to
// (POSIX_FADV_WILLNEED) took a load of 86 MB an eighth longer.
class InputFile final : public arrow::io::RandomAccessFile {
 public:
  // A file of at most `max_whole_bytes` is read whole.
  static Status Open(const std::string& path, int64_t max_whole_bytes,
                     std::shared_ptr<InputFile>* file);
  ~InputFile() override { (void)Close(); }

  // Whether all of it was read when it was opened.
  bool whole() const { return whole_ != nullptr; }

  // Of the whole file: reads what was not read in order yet. `bytes` says how many there were.
  arrow::Result<uint64_t> Xxh3_64(int64_t* bytes);

  arrow::Result<int64_t> ReadAt(int64_t position, int64_t nbytes, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t nbytes) override;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext&,
                                                          int64_t position,
                                                          int64_t nbytes) override;
  arrow::Future<std::shared_ptr<arrow::Buffer>> ReadAsync(const arrow::io::IOContext&,
                                                          int64_t position, int64_t nbytes,
                                                          bool allow_short_read) override;
  arrow::Result<int64_t> Read(int64_t nbytes, void* out) override;
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t nbytes) override;
  arrow::Status Seek(int64_t position) override;
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Result<int64_t> GetSize() override { return size_; }
  arrow::Status Close() override;
  bool closed() const override { return closed_; }

 private:
  // Bytes from `position` on, which the file may turn out not to have.
  arrow::Result<int64_t> Fetch(int64_t position, int64_t nbytes, void* out);
  // Takes the checksum of what was read where it follows what it was taken of.
  arrow::Status Follow(int64_t position, int64_t nbytes, const void* data);
  arrow::Result<std::shared_ptr<arrow::ResizableBuffer>> BufferOf(int64_t nbytes);

  FileDescriptor fd_{-1};
  std::shared_ptr<arrow::io::RandomAccessFile> object_;
  std::shared_ptr<arrow::Buffer> whole_;
  std::shared_ptr<arrow::ResizableBuffer> last_;  // what was read last, used again once it is free
  int64_t size_ = 0;
  int64_t position_ = 0;
  bool closed_ = false;
  Xxh3 checksum_;
  int64_t hashed_ = 0;  // bytes from the beginning that it was taken of
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_INPUT_FILE_H_
