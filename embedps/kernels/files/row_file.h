// What a checkpoint's row file holds: Arrow IPC, one row of a table a record. row_file_writer and
// row_file_reader take and give it; they are built against Arrow, behind headers of plain C++17, so
// that parts built against TensorFlow can include them.
//
// Columns: table (dictionary<int16, utf8>), id (int64), embedding (fixed_size_list<float32>[dim]),
// one fixed_size_list<float32>[width] a slot of the optimizer, last_step (uint32),
// frequency (uint32), removed (bool). A removed record carries zeros in its values. Where the file
// is encoded (row_encoding.h), the embedding's codes are fixed_size_list<uint8>, followed by
// columns embedding_scale and embedding_offset, and bfloat16 slots are fixed_size_list<uint16>.
// Writer and reader take and give floats all the same. A reader applies records in file order:
// removals come before rows of the same id.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_encoding.h"

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

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_H_
