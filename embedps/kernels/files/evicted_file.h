// The writer of evicted rows: a Parquet file per shard and save. Plain C++17; evicted_file.cc is
// built against Arrow.
//
// Columns: table (dictionary<utf8>), id (int64), reason (dictionary<utf8>, an eviction's cause),
// evicted_step (uint32), evicted_time (timestamp[ms, UTC]), last_step (uint32), frequency (uint32),
// embedding (fixed_size_list<float32>[dim]), one fixed_size_list<float32>[width] per optimizer
// slot.
#ifndef EMBEDPS_KERNELS_FILES_EVICTED_FILE_H_
#define EMBEDPS_KERNELS_FILES_EVICTED_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// A batch of evicted rows by column. `rows.removed` is not used.
struct EvictedColumns {
  RowColumns rows;
  std::vector<int8_t> reason;  // an index into the reasons of the file
  std::vector<uint32_t> evicted_step;
  std::vector<int64_t> evicted_millis;  // since the epoch
};

// Writes to a temporary file whose name begins with "_", which readers of a directory skip. Finish
// syncs and renames it. If `path` is a URL of an object store, it uploads in parts, and the object
// appears on Finish. Not thread-safe.
class EvictedFileWriter {
 public:
  virtual ~EvictedFileWriter() = default;  // without Finish, removes the file
  // Creates missing directories of `path`. `reasons` has the names of all of them.
  static Status Open(const std::string& path, const RowFileSchema& schema,
                     const std::vector<std::string>& reasons,
                     std::unique_ptr<EvictedFileWriter>* writer);
  virtual Status Append(const EvictedColumns& columns) = 0;
  virtual Status Finish(RowFileInfo* info) = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_EVICTED_FILE_H_
