"""Constants that Python shares with the C++ kernels.

Their values are written once, in C++ headers. This module reads them from there.
"""

import re
from pathlib import Path
from typing import Final

_KERNELS = Path(__file__).parent / "kernels"
_HEADER = _KERNELS / "runtime" / "constants.h"
_KIND_HEADERS = tuple(
    _KERNELS / name
    for name in (
        "lookup/combiner.h",
        "store/admission.h",
        "store/eviction.h",
        "store/initializers.h",
        "store/optimizers.h",
    )
)
_NUMBER_OR_TEXT = re.compile(
    r"^inline constexpr (?:char|int|int64_t|uint64_t) (k\w+)(?:\[\])? = ([^;]+);", re.MULTILINE
)
_LIST = re.compile(r"^inline constexpr const char\* (k\w+)\[\] = ([^;]+);", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]*)"')


def _read(text: str) -> tuple[dict[str, int], dict[str, str]]:
    """Returns the numbers and the strings that a header defines, by name."""
    found = _NUMBER_OR_TEXT.findall(text)
    strings = {name: quoted[0] for name, value in found if (quoted := _QUOTED.findall(value))}
    return {name: int(value, 0) for name, value in found if name not in strings}, strings


def _read_lists(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the lists of strings that a header defines, by name."""
    return {name: tuple(_QUOTED.findall(value)) for name, value in _LIST.findall(text)}


_NUMBERS, _STRINGS = _read(_HEADER.read_text())
_LISTS = _read_lists("".join(path.read_text() for path in (_HEADER, *_KIND_HEADERS)))

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

CHECKPOINT_VERSION: Final = 4  # of a manifest, in no header: C++ reads none

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
ADMISSION_KINDS: Final = _LISTS["kAdmissionKinds"]
EVICTION_ORDERS: Final = _LISTS["kEvictionOrders"]
EVICTION_CAUSES: Final = _LISTS["kEvictionCauses"]
COMBINERS: Final = _LISTS["kCombiners"]


def shard_file_name(shard: int, num_shards: int) -> str:
    """Names the file of a shard's rows."""
    return SHARD_FILE_FORMAT % (shard, num_shards)


def admission_file_name(shard: int, num_shards: int) -> str:
    """Names the file of the counters of a shard's ids without a row."""
    return ADMISSION_FILE_FORMAT % (shard, num_shards)
