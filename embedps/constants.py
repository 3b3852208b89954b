"""Constants that Python shares with the C++ kernels.

Their values are written once, in kernels/runtime/constants.h. This module reads them from there.
"""

import re
from pathlib import Path
from typing import Final

_HEADER = Path(__file__).parent / "kernels" / "runtime" / "constants.h"
_DEFINITION = re.compile(
    r"^inline constexpr (?:const )?(?:char\*?|int|int64_t|uint64_t) (k\w+)(?:\[\])? = ([^;]+);",
    re.MULTILINE,
)


def _read(text: str) -> tuple[dict[str, int], dict[str, str], dict[str, tuple[str, ...]]]:
    """Returns the numbers, the strings and the lists of strings that a header defines, by name."""
    numbers: dict[str, int] = {}
    strings: dict[str, str] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for name, value in _DEFINITION.findall(text):
        quoted = re.findall(r'"([^"]*)"', value)
        if value.startswith("{"):
            lists[name] = tuple(quoted)
        elif quoted:
            strings[name] = quoted[0]
        else:
            numbers[name] = int(value, 0)
    return numbers, strings, lists


_NUMBERS, _STRINGS, _LISTS = _read(_HEADER.read_text())

SPLITMIX_INCREMENT: Final = _NUMBERS["kSplitMixIncrement"]
SPLITMIX_MULTIPLIERS: Final = (_NUMBERS["kSplitMixMultiplier1"], _NUMBERS["kSplitMixMultiplier2"])
FNV_OFFSET: Final = _NUMBERS["kFnvOffset"]
FNV_PRIME: Final = _NUMBERS["kFnvPrime"]

SHARD_FILE_FORMAT: Final = _STRINGS["kShardFileFormat"]
TEMPORARY_SUFFIX: Final = _STRINGS["kTemporarySuffix"]
OBJECT_SCHEMES: Final = _LISTS["kObjectSchemes"]
FAULT_VARIABLE: Final = _STRINGS["kFaultVariable"]
FILE_PIECE_BYTES: Final = _NUMBERS["kFilePieceBytes"]
MAX_FILE_BLOCKS: Final = _NUMBERS["kMaxFileBlocks"]

ROW_FILE_VERSION_KEY: Final = _STRINGS["kRowFileVersionKey"]
ROW_FILE_VERSION: Final = _STRINGS["kRowFileVersion"]
ROW_FILE_ENCODED_VERSION: Final = _STRINGS["kRowFileEncodedVersion"]
ROW_FILE_EMBEDDING_ENCODING_KEY: Final = _STRINGS["kRowFileEmbeddingEncodingKey"]
ROW_FILE_OPTIMIZER_SLOT_ENCODING_KEY: Final = _STRINGS["kRowFileOptimizerSlotEncodingKey"]
ROW_FILE_DIM_KEY: Final = _STRINGS["kRowFileDimKey"]
ROW_FILE_NUM_TABLES_KEY: Final = _STRINGS["kRowFileNumTablesKey"]
ROW_FILE_TABLE_KEY_PREFIX: Final = _STRINGS["kRowFileTableKeyPrefix"]
MAX_ROW_FILE_BATCH_ROWS: Final = _NUMBERS["kMaxRowFileBatchRows"]
MAX_ROW_FILE_WIDTH: Final = _NUMBERS["kMaxRowFileWidth"]

ADMISSION_FILE_VERSION_KEY: Final = _STRINGS["kAdmissionFileVersionKey"]
ADMISSION_FILE_VERSION: Final = _STRINGS["kAdmissionFileVersion"]
ADMISSION_FILE_PREFIX: Final = _STRINGS["kAdmissionFilePrefix"]
ADMISSION_FILE_FORMAT: Final = _STRINGS["kAdmissionFileFormat"]
MAX_MIN_COUNT: Final = _NUMBERS["kMaxMinCount"]

EMBEDDING_ENCODINGS: Final = _LISTS["kEmbeddingEncodings"]
OPTIMIZER_SLOT_ENCODINGS: Final = _LISTS["kOptimizerSlotEncodings"]
QUANTIZED_LEVELS: Final = {"int8": _NUMBERS["kInt8Levels"], "int4": _NUMBERS["kInt4Levels"]}

ROW_DTYPES: Final = _LISTS["kRowDtypes"]
OPTIMIZER_SLOT_DTYPES: Final = _LISTS["kOptimizerSlotDtypes"]

OPTIMIZER_KINDS: Final = _LISTS["kOptimizerKinds"]
INITIALIZER_KINDS: Final = _LISTS["kInitializerKinds"]
EVICTION_ORDERS: Final = _LISTS["kEvictionOrders"]
EVICTION_CAUSES: Final = _LISTS["kEvictionCauses"]
COMBINERS: Final = _LISTS["kCombiners"]


def shard_file_name(shard: int, num_shards: int) -> str:
    """Names the file of a shard's rows."""
    return SHARD_FILE_FORMAT % (shard, num_shards)


def admission_file_name(shard: int, num_shards: int) -> str:
    """Names the file of the counters of a shard's ids without a row."""
    return ADMISSION_FILE_FORMAT % (shard, num_shards)
