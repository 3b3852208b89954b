// The contents of a checkpoint's row file: Arrow IPC with one record per row of a table.
// row_file_writer and row_file_reader write and read it. They are built against Arrow, but their
// headers are plain C++17, so code that is built against TensorFlow can include them.
//
// Columns: table (dictionary<int16, utf8>), id (int64), embedding (fixed_size_list<float32>[dim]),
// one fixed_size_list<float32>[width] per optimizer slot, last_step (uint32), frequency (uint32),
// removed (bool). The values of a removed record are zeros. In an encoded file (row_encoding.h) a
// quantized embedding's codes are fixed_size_list<uint8>, followed by columns embedding_scale and
// embedding_offset; float16 is fixed_size_list<halffloat>; bfloat16 is fixed_size_list<uint16>, of
// embeddings and of optimizer slots. Writer and reader take and give floats in any case. A reader
// applies records in file order: removals come before rows of the same id.
#ifndef EMBEDPS_KERNELS_FILES_ROW_FILE_H_
#define EMBEDPS_KERNELS_FILES_ROW_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "embedps/kernels/files/row_encoding.h"
#include "embedps/kernels/runtime/constants.h"

namespace embedps {

struct OptimizerSlot {
  std::string name;  // also the column's name; must differ from the fixed columns'
  int width = 0;     // floats per row
};

struct RowFileSchema {
  int dim = 0;
  std::vector<std::string> tables;  // a record's table is an index into it
  std::vector<OptimizerSlot> optimizer_slots;
  EmbeddingEncoding embedding_encoding = EmbeddingEncoding::kFloat32;
  OptimizerSlotEncoding optimizer_slot_encoding = OptimizerSlotEncoding::kFloat32;
  // Stored in the file's schema metadata. Keys that begin with "embedps." belong to the format.
  std::map<std::string, std::string> metadata;
};

// One batch of records by column. Each vector has num_rows entries times its width.
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
  // The checksums of the file's blocks, which tell where a file is damaged. There are at most
  // kMaxFileBlocks blocks of equal size, the least power of two of pieces that suffices. A block's
  // checksum is the xxh3_64 of the xxh3_64s (8 bytes each, little-endian) of its pieces of
  // kFilePieceBytes.
  std::vector<uint64_t> blocks;
};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_FILES_ROW_FILE_H_
