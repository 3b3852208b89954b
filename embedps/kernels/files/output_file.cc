#include "embedps/kernels/files/output_file.h"

#include <arrow/status.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "embedps/kernels/files/local_files.h"
#include "embedps/kernels/files/object_files.h"
#include "embedps/kernels/runtime/constants.h"

namespace embedps {

OutputFile::~OutputFile() {
  if (finished_ || file_ == nullptr) return;
  file_.reset();
  if (!IsObject(path_)) ::unlink(TemporaryPath().c_str());
}

Status OutputFile::Open() {
  if (IsObject(path_)) {
    auto upload = OpenObjectOutput(path_);
    if (!upload.ok()) return Wrap(upload.status());
    file_ = std::make_unique<ChecksummedFile>(*std::move(upload), buffer_bytes_);
    return Status::Ok();
  }
  EMBEDPS_RETURN_IF_ERROR(MakeDirectories(std::filesystem::path(path_).parent_path(), &unsynced_));
  const std::string temporary = TemporaryPath();
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return Errno("cannot create", temporary, errno);
  file_ = std::make_unique<ChecksummedFile>(fd, buffer_bytes_);
  return Status::Ok();
}

Status OutputFile::Finish(RowFileInfo* info) {
  EMBEDPS_RETURN_IF_ERROR(Wrap(file_->Close()));
  finished_ = IsObject(path_);
  if (!finished_) EMBEDPS_RETURN_IF_ERROR(MoveIntoPlace());
  info->bytes = file_->bytes();
  info->xxh3_64 = file_->xxh3_64();
  info->blocks = file_->Blocks();
  return Status::Ok();
}

Status OutputFile::Wrap(const arrow::Status& status) const {
  if (status.ok()) return Status::Ok();
  return Status::IoError("cannot write row file " + Quoted(path_) + ": " + status.ToString());
}

std::string OutputFile::TemporaryPath() const {
  if (!hidden_) return path_ + kTemporarySuffix;
  const std::filesystem::path path(path_);
  return path.parent_path() / ("_" + path.filename().string() + kTemporarySuffix);
}

Status OutputFile::MoveIntoPlace() {
  DieIfFault("rename");
  if (std::rename(TemporaryPath().c_str(), path_.c_str()) != 0) {
    return Errno("cannot rename the finished row file to", path_, errno);
  }
  finished_ = true;
  // A file has no effect before a manifest names it. So new directories are synced here, together
  // with the file's own: that costs one write to the file system's journal in total.
  EMBEDPS_RETURN_IF_ERROR(SyncDirectory(std::filesystem::path(path_).parent_path()));
  for (const std::filesystem::path& directory : unsynced_) {
    EMBEDPS_RETURN_IF_ERROR(SyncDirectory(directory));
  }
  return Status::Ok();
}

}  // namespace embedps
