// Files in object stores, s3:// and gs://, through Arrow's filesystems: C++20.
#ifndef EMBEDPS_KERNELS_FILES_OBJECT_FILES_H_
#define EMBEDPS_KERNELS_FILES_OBJECT_FILES_H_

#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <memory>
#include <string>

namespace embedps {

// Whether a path is a URL of an object store.
bool IsObject(const std::string& path);

// Starts an upload in parts. The object appears as a whole on Close, and never after Abort.
arrow::Result<std::shared_ptr<arrow::io::OutputStream>> OpenObjectOutput(const std::string& url);

arrow::Result<std::shared_ptr<arrow::io::RandomAccessFile>> OpenObjectInput(const std::string& url);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_OBJECT_FILES_H_
