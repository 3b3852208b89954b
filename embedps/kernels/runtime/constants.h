// Constants that C++ and Python share. embedps/constants.py reads them from this file, and the
// names of kinds from the headers of those, so each definition must be a literal: a number, a
// string or a list of strings. They are part of the checkpoint format or of how rows are routed: a
// new value needs a new format version.
#ifndef EMBEDPS_KERNELS_RUNTIME_CONSTANTS_H_
#define EMBEDPS_KERNELS_RUNTIME_CONSTANTS_H_

#include <cstdint>

namespace embedps {

// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014). The
// increment is 2^64 divided by the golden ratio, made odd.
inline constexpr uint64_t kSplitMixIncrement = 0x9E3779B97F4A7C15;
inline constexpr uint64_t kSplitMixMultiplier1 = 0xBF58476D1CE4E5B9;
inline constexpr uint64_t kSplitMixMultiplier2 = 0x94D049BB133111EB;

// FNV-1a of 64 bits.
inline constexpr uint64_t kFnvOffset = 0xCBF29CE484222325;
inline constexpr uint64_t kFnvPrime = 0x100000001B3;

// File names. The shard format takes the shard and the number of shards.
inline constexpr char kShardFileFormat[] = "shard-%d-of-%d.arrow";
inline constexpr char kTemporarySuffix[] = ".tmp";
inline constexpr const char* kObjectSchemes[] = {"s3", "gs"};

// Names a point at which a test kills the process.
inline constexpr char kFaultVariable[] = "EMBEDPS_FAULT";

// A file's checksums are taken per piece. At most kMaxFileBlocks of them are kept.
inline constexpr int64_t kFilePieceBytes = 65536;
inline constexpr int64_t kMaxFileBlocks = 32;

// Keys of a row file's schema metadata, and the versions that the first one names: all floats are
// float32, or the metadata says how they are encoded.
inline constexpr char kRowFileVersionKey[] = "embedps.row_file";
inline constexpr char kRowFileVersion[] = "1";
inline constexpr char kRowFileEncodedVersion[] = "2";
inline constexpr char kRowFileEmbeddingEncodingKey[] = "embedps.rows";
inline constexpr char kRowFileOptimizerSlotEncodingKey[] = "embedps.slots";
inline constexpr char kRowFileDimKey[] = "embedps.dim";
inline constexpr char kRowFileNumTablesKey[] = "embedps.num_tables";
inline constexpr char kRowFileTableKeyPrefix[] = "embedps.table.";

// An admission file's schema metadata, and its names.
inline constexpr char kAdmissionFileVersionKey[] = "embedps.admission_file";
inline constexpr char kAdmissionFileVersion[] = "1";
inline constexpr char kAdmissionFilePrefix[] = "admission-";  // in the place of "shard-"
inline constexpr char kAdmissionFileFormat[] = "admission-%d-of-%d.arrow";

// Limits of a row file: records per batch, floats per embedding or optimizer slot, tables.
inline constexpr int64_t kMaxRowFileBatchRows = 65536;
inline constexpr int kMaxRowFileWidth = 65536;
inline constexpr int kMaxRowFileTables = 32768;

// How a row file stores the floats of embeddings and of optimizer slots, and the greatest codes.
inline constexpr const char* kEmbeddingEncodings[] = {"float32", "int8", "int4", "bfloat16",
                                                      "float16"};
inline constexpr const char* kOptimizerSlotEncodings[] = {"float32", "bfloat16"};
inline constexpr int kInt8Levels = 255;
inline constexpr int kInt4Levels = 15;

// A counter of an admission policy has 8 bits and stops before it admits.
inline constexpr int kMaxMinCount = 256;

// How a store keeps the floats of embeddings and of optimizer slots in memory.
inline constexpr const char* kRowDtypes[] = {"float32", "bfloat16", "float16"};
inline constexpr const char* kOptimizerSlotDtypes[] = {"float32", "bfloat16"};

}  // namespace embedps

#endif  // EMBEDPS_KERNELS_RUNTIME_CONSTANTS_H_
