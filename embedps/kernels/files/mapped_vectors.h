// The vectors of a row file by id, with which new rows begin. The file is mapped and stays on the
// disk: memory is 16 bytes per id. Plain C++17; mapped_vectors.cc is built against Arrow.
#ifndef EMBEDPS_KERNELS_FILES_MAPPED_VECTORS_H_
#define EMBEDPS_KERNELS_FILES_MAPPED_VECTORS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "embedps/kernels/files/initial_vectors.h"
#include "embedps/kernels/files/row_file.h"
#include "embedps/kernels/files/row_file_reader.h"
#include "embedps/kernels/runtime/status.h"

namespace embedps {

// A row file whose embeddings are float32, with each id once per table.
class MappedVectors {
 public:
  using IsWanted = std::function<bool(int64_t id)>;

  virtual ~MappedVectors() = default;
  // Reads the file once, and checks it as VerifyFile does. It must stay as it is: who reads a map
  // of a file that became shorter gets a signal. An object is copied to a file that has no name, in
  // $TMPDIR or /tmp.
  static Status Open(const std::string& path, const FileSum& expected,
                     std::unique_ptr<MappedVectors>* vectors);
  virtual const RowFileSchema& schema() const = 0;
  // Finds the vectors of the file's table number `table` whose ids are wanted, and adds their
  // number to `*count`. They keep the map.
  virtual std::shared_ptr<const InitialVectors> OfTable(int table, const IsWanted& is_wanted,
                                                        int64_t* count) const = 0;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_MAPPED_VECTORS_H_
