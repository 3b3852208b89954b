// Tools for files on a local disk: descriptors, directories that survive a power cut, and the
// points at which a test kills the process.
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

// Returns NotFound for ENOENT and IoError for any other error.
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

// A test kills the process by EMBEDPS_FAULT=row_file.POINT:N when it reaches POINT (write, fsync,
// rename, mkdir, spill) for the N-th time. POINT `any` counts all of them.
bool FaultIsDue(const char* point);
void Die();
void DieIfFault(const char* point);

Status SyncDirectory(const std::filesystem::path& path);

// Makes a directory and its parents, as mkdir -p. Adds the directories with new entries to
// `unsynced`, the innermost first. The new entries survive a power cut once each of these is
// synced.
Status MakeDirectories(const std::filesystem::path& path,
                       std::vector<std::filesystem::path>* unsynced);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_LOCAL_FILES_H_
