// The input of a row file: a file on a disk or an object in a store. Takes its checksum while it is
// read. Uses Arrow: C++20.
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

// A file that is read on the calling thread. Arrow's own files may use its I/O threads, which may
// hold the reader and its memory pool after Open has returned. The file is not mapped: if it is
// truncated meanwhile, the result is a Status and not a signal.
//
// A small file is read whole when it is opened, with one disk request; reads return views of it.
// The checksum of a larger file is taken while it is read from the beginning, so verifying it needs
// no second read. The operating system reads ahead by itself. POSIX_FADV_WILLNEED makes a load of
// 86 MB an eighth slower.
class InputFile final : public arrow::io::RandomAccessFile {
 public:
  // Reads the whole file at once if it has at most `max_whole_bytes`.
  static Status Open(const std::string& path, int64_t max_whole_bytes,
                     std::shared_ptr<InputFile>* file);
  ~InputFile() override { (void)Close(); }

  // Whether Open read all of it.
  bool whole() const { return whole_ != nullptr; }

  // Returns the checksum of the whole file. Reads the parts that were not yet read in order. Sets
  // `*bytes` to the file's size.
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
  // Reads bytes from `position` on; fewer if the file ends before.
  arrow::Result<int64_t> Fetch(int64_t position, int64_t nbytes, void* out);
  // Extends the checksum by data that was read, if the data continues it.
  arrow::Status ExtendChecksum(int64_t position, int64_t nbytes, const void* data);
  arrow::Result<std::shared_ptr<arrow::ResizableBuffer>> BufferOf(int64_t nbytes);

  FileDescriptor fd_{-1};
  std::shared_ptr<arrow::io::RandomAccessFile> object_;
  std::shared_ptr<arrow::Buffer> whole_;
  std::shared_ptr<arrow::ResizableBuffer> last_;  // of the last read; reused when it is free
  int64_t size_ = 0;
  int64_t position_ = 0;
  bool closed_ = false;
  Xxh3 checksum_;
  int64_t hashed_ = 0;  // bytes from the beginning that the checksum covers
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_INPUT_FILE_H_
