#include "embedps/kernels/files/local_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {
namespace {

class Faults {
 public:
  Faults() {
    const char* text = std::getenv(kFaultVariable);
    constexpr std::string_view prefix = "row_file.";
    if (text == nullptr || std::string_view(text).substr(0, prefix.size()) != prefix) return;
    const std::string_view rest = std::string_view(text).substr(prefix.size());
    const size_t colon = rest.find(':');
    if (colon == std::string_view::npos) return;
    point_ = rest.substr(0, colon);
    left_ = std::atoi(rest.data() + colon + 1);
  }
  bool IsDue(const char* point) {
    if (point_.empty() || (point_ != "any" && point_ != point)) return false;
    return left_.fetch_sub(1) == 1;
  }

 private:
  std::string point_;
  std::atomic<int> left_{0};
};

}  // namespace

std::string Quoted(const std::string& text) { return "'" + text + "'"; }

Status Errno(const std::string& what, const std::string& path, int error) {
  const std::string message = what + " " + Quoted(path) + ": " + std::strerror(error);
  return error == ENOENT ? Status::NotFound(message) : Status::IoError(message);
}

bool FaultIsDue(const char* point) {
  static Faults* faults = new Faults;
  return faults->IsDue(point);
}

void Die() { ::kill(::getpid(), SIGKILL); }

void DieIfFault(const char* point) {
  if (FaultIsDue(point)) Die();
}

Status SyncDirectory(const std::filesystem::path& path) {
  const std::string name = path.empty() ? "." : path.string();
  FileDescriptor directory(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return Errno("cannot open directory", name, errno);
  DieIfFault("fsync");
  if (::fsync(directory.get()) != 0) return Errno("cannot fsync directory", name, errno);
  return Status::Ok();
}

Status MakeDirectories(const std::filesystem::path& path,
                       std::vector<std::filesystem::path>* unsynced) {
  std::error_code error;
  if (path.empty() || std::filesystem::is_directory(path, error)) return Status::Ok();
  EMBEDPS_RETURN_IF_ERROR(MakeDirectories(path.parent_path(), unsynced));
  DieIfFault("mkdir");
  if (::mkdir(path.c_str(), 0777) != 0) {
    if (errno == EEXIST) return Status::Ok();  // another shard made it in the meantime
    return Errno("cannot make directory", path.string(), errno);
  }
  unsynced->insert(unsynced->begin(), path.parent_path());
  return Status::Ok();
}

}  // namespace embedps
