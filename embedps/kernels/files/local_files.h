// What writers and readers of files on a local disk share: descriptors, directories that survive a
// power cut, and the points at which a test has the process killed.
#ifndef EMBEDPS_KERNELS_FILES_LOCAL_FILES_H_
#define EMBEDPS_KERNELS_FILES_LOCAL_FILES_H_

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "embedps/kernels/runtime/status.h"

namespace embedps {

std::string Quoted(const std::string& text);

// NotFound of ENOENT, IoError of any other.
Status Errno(const std::string& what, const std::string& path, int error);

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor& operator=(FileDescriptor&& other) {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A point at which a test has the process killed: EMBEDPS_FAULT=row_file.POINT:N, at the N-th time
// that it comes to POINT (write, fsync, rename, mkdir), or with POINT `any`, to any of them.
bool FaultIsDue(const char* point);
void Die();
void DieIfFault(const char* point);

Status SyncDirectory(const std::filesystem::path& path);

// mkdir -p. Adds to `unsynced` the directories with new entries, the innermost first: these survive
// a power cut once each is synced.
Status MakeDirectories(const std::filesystem::path& path,
                       std::vector<std::filesystem::path>* unsynced);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_LOCAL_FILES_H_
