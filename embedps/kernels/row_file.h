// Checkpoint row files: Arrow IPC, one row of a table a record. Plain C++17, so that parts built
// against TensorFlow can include it; row_file.cc is built against Arrow.
//
// Columns: table (dictionary<int16, utf8>), id (int64), embedding (fixed_size_list<float32>[dim]),
// one fixed_size_list<float32>[width] a slot of the optimizer, last_step (uint32),
// frequency (uint32), removed (bool). A removed record carries zeros in its values. Where the file
// is encoded (row_encoding.h), the embedding's codes are fixed_size_list<uint8>, followed by
// columns embedding_scale and embedding_offset, and bfloat16 slots are fixed_size_list<uint16>.
// Writer and reader take and give floats all the same. A reader applies records in file order:
// removals come before rows of the same id.
#ifndef EMBEDPS_KERNELS_ROW_FILE_H_
#define EMBEDPS_KERNELS_ROW_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "embedps/kernels/row_encoding.h"
#include "embedps/kernels/status.h"

namespace embedps {

// A record batch holds at most this many records: it bounds what a reader allocates.
inline constexpr int64_t kMaxRowFileBatchRows = 65536;
// The most floats an embedding or an optimizer slot may have.
inline constexpr int kMaxRowFileWidth = 65536;

struct OptimizerSlot {
  std::string name;  // also the column's name: none of the fixed columns'
  int width = 0;     // floats a row
};

struct RowFileSchema {
  int dim = 0;
  std::vector<std::string> tables;  // a record's table is an index into this
  std::vector<OptimizerSlot> optimizer_slots;
  RowEncoding rows = RowEncoding::kFloat32;
  SlotEncoding slots = SlotEncoding::kFloat32;
  // Kept in the file's schema metadata; keys that begin with "embedps." are the format's own.
  std::map<std::string, std::string> metadata;
};

// One batch of records, by column; each vector has num_rows entries times its width.
struct RowColumns {
  int64_t num_rows = 0;
  std::vector<int16_t> table;
  std::vector<int64_t> id;
  std::vector<float> embedding;
  std::vector<std::vector<float>> optimizer_slots;
  std::vector<uint32_t> last_step;
  std::vector<uint32_t> frequency;
  std::vector<uint8_t> removed;
};

struct RowFileInfo {
  int64_t bytes = 0;
  int64_t rows = 0;      // records that are not removals
  int64_t removed = 0;   // records that are
  uint64_t xxh3_64 = 0;  // of the whole file
  // Of its blocks, which tell where a file was damaged: at most kMaxFileBlocks of the same power of
  // two of bytes, the least that is enough. A block's is the xxh3_64 of the xxh3_64s, 8 bytes each,
  // little-endian, of its pieces of kFilePieceBytes.
  std::vector<uint64_t> blocks;
};

inline constexpr int64_t kFilePieceBytes = 65536;
inline constexpr int64_t kMaxFileBlocks = 32;

// Writes to `path` + ".tmp", checksums what it writes, fsyncs, renames on Finish. Where `path` is a
// URL of an object store it is uploaded by parts, and appears on Finish. Not thread-safe.
class RowFileWriter {
 public:
  virtual ~RowFileWriter() = default;  // without Finish: nothing is left
  // compression: "none", "lz4" or "zstd". Creates the directories of `path` that are missing.
  static Status Open(const std::string& path, const RowFileSchema& schema,
                     const std::string& compression, std::unique_ptr<RowFileWriter>* writer);
  // Cuts `columns` into record batches of at most kMaxRowFileBatchRows.
  virtual Status Append(const RowColumns& columns) = 0;
  virtual Status Finish(RowFileInfo* info) = 0;
};

// Reads a row file batch by batch. Not thread-safe.
class RowFileReader {
 public:
  virtual ~RowFileReader() = default;
  static Status Open(const std::string& path, std::unique_ptr<RowFileReader>* reader);
  virtual const RowFileSchema& schema() const = 0;
  virtual int num_batches() const = 0;
  // Fills `columns`, whose vectors are reused; every length and table index is checked.
  virtual Status Read(int batch, RowColumns* columns) = 0;
};

// Reads the whole file once: its size and the xxh3_64 of its bytes.
Status ChecksumFile(const std::string& path, int64_t* bytes, uint64_t* xxh3_64);
// ChecksumFile, and DataLoss naming the path, field, expected and found where either differs.
Status VerifyFile(const std::string& path, int64_t expected_bytes, uint64_t expected_xxh3_64);

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_ROW_FILE_H_
