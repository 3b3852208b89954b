#include "embedps/kernels/files/object_files.h"

#include <arrow/filesystem/filesystem.h>
#include <arrow/filesystem/s3fs.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <mutex>

#include "embedps/kernels/runtime/constants.h"

namespace embedps {
namespace {

bool HasScheme(const std::string& path, const std::string& scheme) {
  return path.rfind(scheme + "://", 0) == 0;
}

// Returns the filesystem of a URL and sets `*name` to the object's name in it. Arrow reads the
// store's address and the credentials from the environment.
arrow::Result<std::shared_ptr<arrow::fs::FileSystem>> Open(const std::string& url,
                                                           std::string* name) {
  if (HasScheme(url, "s3")) {
    ARROW_RETURN_NOT_OK(arrow::fs::EnsureS3Initialized());
    static std::once_flag once;
    // Arrow's S3 code must end before the process destroys its static objects.
    std::call_once(once, [] { std::atexit([] { (void)arrow::fs::EnsureS3Finalized(); }); });
  }
  return arrow::fs::FileSystemFromUri(url, name);
}

}  // namespace

bool IsObject(const std::string& path) {
  return std::any_of(std::begin(kObjectSchemes), std::end(kObjectSchemes),
                     [&path](const char* scheme) { return HasScheme(path, scheme); });
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
