#include "embedps/kernels/files/object_files.h"

#include <arrow/filesystem/filesystem.h>
#include <arrow/filesystem/s3fs.h>

#include <cstdlib>
#include <mutex>

namespace embedps {
namespace {

constexpr char kS3[] = "s3://";
constexpr char kGs[] = "gs://";

// The filesystem of a URL, and the object's name in it. Where the store is and who asks is read
// from the environment.
arrow::Result<std::shared_ptr<arrow::fs::FileSystem>> Open(const std::string& url,
                                                           std::string* name) {
  if (url.rfind(kS3, 0) == 0) {
    ARROW_RETURN_NOT_OK(arrow::fs::EnsureS3Initialized());
    static std::once_flag once;
    // Arrow's S3 side must end before the process's static objects do.
    std::call_once(once, [] { std::atexit([] { (void)arrow::fs::EnsureS3Finalized(); }); });
  }
  return arrow::fs::FileSystemFromUri(url, name);
}

}  // namespace

bool IsObject(const std::string& path) {
  return path.rfind(kS3, 0) == 0 || path.rfind(kGs, 0) == 0;
}

arrow::Result<std::shared_ptr<arrow::io::OutputStream>> OpenObjectOutput(const std::string& url) {
  std::string name;
  ARROW_ASSIGN_OR_RAISE(auto filesystem, Open(url, &name));
  return filesystem->OpenOutputStream(name);
}

arrow::Result<std::shared_ptr<arrow::io::RandomAccessFile>> OpenObjectInput(
    const std::string& url) {
  std::string name;
  ARROW_ASSIGN_OR_RAISE(auto filesystem, Open(url, &name));
  return filesystem->OpenInputFile(name);
}

}  // namespace embedps
