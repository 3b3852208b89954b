#include "embedps/kernels/files/checksummed_file.h"

#include <arrow/status.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {
namespace {

constexpr size_t kAlignment = 4096;  // at least every device's block size

}  // namespace

ChecksummedFile::ChecksummedFile(int fd, int64_t buffer_bytes)
    : fd_(fd),
      buffer_bytes_(buffer_bytes),
      buffer_(static_cast<char*>(std::aligned_alloc(kAlignment, buffer_bytes))) {
  set_mode(arrow::io::FileMode::WRITE);
}

ChecksummedFile::ChecksummedFile(std::shared_ptr<arrow::io::OutputStream> upload,
                                 int64_t buffer_bytes)
    : ChecksummedFile(-1, buffer_bytes) {
  upload_ = std::move(upload);
}

ChecksummedFile::~ChecksummedFile() {
  if (upload_ != nullptr && !upload_->closed()) (void)upload_->Abort();
}

arrow::Status ChecksummedFile::Write(const void* data, int64_t nbytes) {
  if (buffer_ == nullptr)
    return arrow::Status::OutOfMemory("a buffer of ", buffer_bytes_, " bytes");
  if (FaultIsDue("write")) Tear(data, nbytes);
  const char* next = static_cast<const char*>(data);
  while (nbytes > 0) {
    // One piece at a time: the CPU caches still hold it when its checksums are taken.
    const int64_t some = std::min(nbytes, kFilePieceBytes - filled_ % kFilePieceBytes);
    std::memcpy(buffer_.get() + filled_, next, static_cast<size_t>(some));
    next += some;
    nbytes -= some;
    filled_ += some;
    bytes_ += some;
    Hash(/*all=*/false);
    if (filled_ == buffer_bytes_) ARROW_RETURN_NOT_OK(Flush(/*last=*/false));
  }
  return arrow::Status::OK();
}

void ChecksummedFile::Hash(bool all) {
  const int64_t end = all ? filled_ : filled_ / kFilePieceBytes * kFilePieceBytes;
  while (hashed_ < end) {
    const auto some = static_cast<size_t>(std::min(end - hashed_, kFilePieceBytes));
    checksum_.Update(buffer_.get() + hashed_, some);
    pieces_.push_back(XXH3_64bits(buffer_.get() + hashed_, some));
    hashed_ += static_cast<int64_t>(some);
  }
}

arrow::Status ChecksummedFile::Flush(bool last) {
  const char* next = buffer_.get();
  int64_t left = std::exchange(filled_, 0);
  hashed_ = 0;
  if (upload_ != nullptr) return upload_->Write(next, left);
  if (direct_ == last) SetDirect(!last);
  while (left > 0) {
    const ssize_t written = ::write(fd_.get(), next, static_cast<size_t>(left));
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL && direct_) {  // not possible on this device, or after a short write
        SetDirect(false);
        continue;
      }
      return arrow::Status::IOError("write at byte ", bytes_ - left, ": ", std::strerror(errno));
    }
    next += written;
    left -= written;
  }
  return arrow::Status::OK();
}

void ChecksummedFile::SetDirect(bool direct) {
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  direct_ = ::fcntl(fd_.get(), F_SETFL, wanted) == 0 && direct;
}

void ChecksummedFile::Tear(const void* data, int64_t nbytes) {
  SetDirect(false);
  if (::write(fd_.get(), buffer_.get(), static_cast<size_t>(filled_)) == filled_) {
    if (::write(fd_.get(), data, static_cast<size_t>(nbytes / 2)) >= 0) Die();
  }
  Die();
  std::abort();
}

arrow::Status ChecksummedFile::Close() {
  if (std::exchange(closed_, true)) return arrow::Status::OK();
  Hash(/*all=*/true);
  if (filled_ > 0) ARROW_RETURN_NOT_OK(Flush(/*last=*/true));
  if (upload_ != nullptr) return upload_->Close();
  const int fd = fd_.Release();
  DieIfFault("fsync");
  const bool synced = ::fsync(fd) == 0;
  const int error = errno;
  if (!synced) {
    ::close(fd);
    return arrow::Status::IOError("fsync: ", std::strerror(error));
  }
  if (::close(fd) != 0) return arrow::Status::IOError("close: ", std::strerror(errno));
  return arrow::Status::OK();
}

std::vector<uint64_t> ChecksummedFile::Blocks() const {
  const int64_t num_pieces = static_cast<int64_t>(pieces_.size());
  int64_t pieces_per_block = 1;
  while (num_pieces > pieces_per_block * kMaxFileBlocks) pieces_per_block *= 2;
  std::vector<uint64_t> blocks;
  for (int64_t first = 0; first < num_pieces; first += pieces_per_block) {
    const int64_t count = std::min(pieces_per_block, num_pieces - first);
    blocks.push_back(XXH3_64bits(pieces_.data() + first, sizeof(uint64_t) * count));
  }
  return blocks;
}

}  // namespace embedps
