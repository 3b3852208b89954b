// A checkpoint's admission file: Arrow IPC with one record per counter of an id without a row.
// admission_file.cc is built against Arrow; this header is plain C++17.
//
// Columns: table (dictionary<int16, utf8>), id (int64), count (uint32, the examples that showed the
// id), last_step (uint32, of the last of them), removed (bool; then both are 0). A reader applies
// records in file order.
#ifndef EMBEDPS_KERNELS_FILES_ADMISSION_FILE_H_
#define EMBEDPS_KERNELS_FILES_ADMISSION_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/files/counter_columns.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// Writes a file as RowFileWriter does. Not thread-safe.
class AdmissionFileWriter {
 public:
  virtual ~AdmissionFileWriter() = default;  // without Finish, removes the file
  static Status Open(const std::string& path, const std::vector<std::string>& tables,
                     std::unique_ptr<AdmissionFileWriter>* writer);
  virtual Status Append(const CounterColumns& columns) = 0;
  virtual Status Finish(RowFileInfo* info) = 0;
};

// Checks a file's size and checksum, then gives its records in batches, with the names of its
// tables. A difference, or a file that is not an admission file, is DataLoss.
Status ReadAdmissionFile(
    const std::string& path, const FileSum& expected,
    const std::function<void(const CounterColumns&, const std::vector<std::string>& tables)>& take);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ADMISSION_FILE_H_
