#include "embedps/kernels/files/input_file.h"

#include <arrow/status.h>
#include <arrow/util/future.h>
#include <arrow/util/io_util.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "embedps/kernels/files/object_files.h"

namespace embedps {
namespace {

// Padding lies between two messages, and the schema before the first one.
constexpr int64_t kMaxGapBytes = 64 << 10;
constexpr int64_t kChunkBytes = 1 << 20;

Status NotOpened(const std::string& path, const arrow::Status& status) {
  const std::string message = "cannot open " + Quoted(path) + ": " + status.ToString();
  // Arrow has no status code for an absent object. It attaches this errno.
  const auto* detail = status.detail().get();
  const bool absent = detail != nullptr && arrow::internal::ErrnoFromStatus(status) == ENOENT;
  return absent ? Status::NotFound(message) : Status::IoError(message);
}

}  // namespace

Status InputFile::Open(const std::string& path, int64_t max_whole_bytes,
                       std::shared_ptr<InputFile>* file) {
  auto opened = std::make_shared<InputFile>();
  if (IsObject(path)) {
    auto object = OpenObjectInput(path);
    if (!object.ok()) return NotOpened(path, object.status());
    auto size = (*object)->GetSize();
    if (!size.ok()) return NotOpened(path, size.status());
    opened->object_ = *std::move(object);
    opened->size_ = *size;
  } else {
    opened->fd_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (opened->fd_.get() < 0) return Errno("cannot open", path, errno);
    struct stat attributes;
    if (::fstat(opened->fd_.get(), &attributes) != 0) return Errno("cannot stat", path, errno);
    if (!S_ISREG(attributes.st_mode)) {  // opening a FIFO would block
      return Status::DataLoss(Quoted(path) + " must be a file but is not a regular one");
    }
    opened->size_ = attributes.st_size;
  }
  if (opened->size_ <= max_whole_bytes) {
    auto whole = opened->ReadAt(0, opened->size_);
    if (!whole.ok()) return Status::IoError(Quoted(path) + ": " + whole.status().ToString());
    opened->whole_ = *std::move(whole);
    opened->size_ = opened->whole_->size();
  }
  *file = std::move(opened);
  return Status::Ok();
}

arrow::Result<uint64_t> InputFile::Xxh3_64(int64_t* bytes) {
  std::vector<char> chunk(static_cast<size_t>(std::min(kChunkBytes, size_ - hashed_)));
  while (hashed_ < size_) {
    ARROW_ASSIGN_OR_RAISE(const int64_t count,
                          ReadAt(hashed_, static_cast<int64_t>(chunk.size()), chunk.data()));
    if (count == 0) break;  // the file was truncated meanwhile
  }
  *bytes = hashed_;
  return checksum_.Digest();
}

arrow::Result<int64_t> InputFile::Fetch(int64_t position, int64_t nbytes, void* out) {
  if (object_ != nullptr) return object_->ReadAt(position, nbytes, out);
  int64_t done = 0;
  while (done < nbytes) {
    const ssize_t count = ::pread(fd_.get(), static_cast<char*>(out) + done,
                                  static_cast<size_t>(nbytes - done), position + done);
    if (count == 0) break;
    if (count < 0) {
      if (errno == EINTR) continue;
      return arrow::Status::IOError("read at byte ", position + done, ": ", std::strerror(errno));
    }
    done += count;
  }
  return done;
}

arrow::Status InputFile::ExtendChecksum(int64_t position, int64_t nbytes, const void* data) {
  if (position > hashed_ + kMaxGapBytes || position + nbytes <= hashed_) return arrow::Status::OK();
  if (position > hashed_) {
    std::vector<char> gap(static_cast<size_t>(position - hashed_));
    ARROW_ASSIGN_OR_RAISE(const int64_t count,
                          Fetch(hashed_, static_cast<int64_t>(gap.size()), gap.data()));
    checksum_.Update(gap.data(), static_cast<size_t>(count));
    hashed_ += count;
    if (hashed_ < position) return arrow::Status::OK();
  }
  checksum_.Update(static_cast<const char*>(data) + (hashed_ - position),
                   static_cast<size_t>(position + nbytes - hashed_));
  hashed_ = position + nbytes;
  return arrow::Status::OK();
}

arrow::Result<int64_t> InputFile::ReadAt(int64_t position, int64_t nbytes, void* out) {
  if (position < 0 || nbytes < 0) return arrow::Status::Invalid("a read before the beginning");
  nbytes = std::min(nbytes, std::max<int64_t>(0, size_ - position));
  if (whole_ != nullptr) {
    std::memcpy(out, whole_->data() + std::min(position, size_), static_cast<size_t>(nbytes));
    return nbytes;
  }
  ARROW_ASSIGN_OR_RAISE(const int64_t count, Fetch(position, nbytes, out));
  ARROW_RETURN_NOT_OK(ExtendChecksum(position, count, out));
  return count;
}

arrow::Result<std::shared_ptr<arrow::ResizableBuffer>> InputFile::BufferOf(int64_t nbytes) {
  // A reader frees a batch before it asks for the next one, so its buffer, whose pages exist
  // already, can be reused. That does not pay for small buffers.
  if (nbytes < kMaxGapBytes) return arrow::AllocateResizableBuffer(nbytes);
  if (last_ == nullptr || last_.use_count() > 1) {
    ARROW_ASSIGN_OR_RAISE(last_, arrow::AllocateResizableBuffer(nbytes));
  }
  ARROW_RETURN_NOT_OK(last_->Resize(nbytes, /*shrink_to_fit=*/false));
  return last_;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> InputFile::ReadAt(int64_t position, int64_t nbytes) {
  // A damaged footer may ask for more than the file has: do not allocate that.
  nbytes = std::max<int64_t>(0, std::min(nbytes, size_ - std::max<int64_t>(0, position)));
  if (whole_ != nullptr) {
    if (position < 0) return arrow::Status::Invalid("a read before the beginning");
    return arrow::SliceBuffer(whole_, std::min(position, size_), nbytes);
  }
  ARROW_ASSIGN_OR_RAISE(auto buffer, BufferOf(nbytes));
  ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position, nbytes, buffer->mutable_data()));
  ARROW_RETURN_NOT_OK(buffer->Resize(count, /*shrink_to_fit=*/false));
  return buffer;
}

arrow::Future<std::shared_ptr<arrow::Buffer>> InputFile::ReadAsync(const arrow::io::IOContext&,
                                                                   int64_t position,
                                                                   int64_t nbytes) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(ReadAt(position, nbytes));
}

arrow::Future<std::shared_ptr<arrow::Buffer>> InputFile::ReadAsync(const arrow::io::IOContext&,
                                                                   int64_t position, int64_t nbytes,
                                                                   bool allow_short_read) {
  return arrow::Future<std::shared_ptr<arrow::Buffer>>::MakeFinished(
      arrow::io::RandomAccessFile::ReadAt(position, nbytes, allow_short_read));
}

arrow::Result<int64_t> InputFile::Read(int64_t nbytes, void* out) {
  ARROW_ASSIGN_OR_RAISE(const int64_t count, ReadAt(position_, nbytes, out));
  position_ += count;
  return count;
}

arrow::Result<std::shared_ptr<arrow::Buffer>> InputFile::Read(int64_t nbytes) {
  ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, nbytes));
  position_ += buffer->size();
  return buffer;
}

arrow::Status InputFile::Seek(int64_t position) {
  position_ = position;
  return arrow::Status::OK();
}

arrow::Status InputFile::Close() {
  closed_ = true;
  return arrow::Status::OK();
}

}  // namespace embedps
