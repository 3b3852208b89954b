"""Constants that Python shares with the C++ kernels are what both sides use."""

import re
from typing import get_args

import numpy as np
import pytest
import tensorflow as tf

from embedps import constants, kernels
from embedps.checkpoint.format.quantize import OptimizerSlotEncoding, RowEncoding
from embedps.splitmix import mix
from embedps.tables import admission, eviction, optimizers, specs
from tests.kernels import twins
from tests.tables.builders import make_collection, make_table

NAMES = [f"C{i}" for i in range(8)]
IDS = [0, 1, -1, 2**63 - 1, -(2**63), *range(2, 500)]


def test_every_definition_of_the_header_is_read():
    text = constants._HEADER.read_text()
    defined = re.findall(r"^inline constexpr .*?(k\w+)", text, re.M)
    read = [*constants._NUMBERS, *constants._STRINGS, *constants._read_lists(text)]
    assert len(defined) > 20
    assert sorted(read) == sorted(defined)


def test_values_of_the_checkpoint_format_do_not_change():
    assert constants.shard_file_name(3, 8) == "shard-3-of-8.arrow"
    assert (constants.FILE_PIECE_BYTES, constants.MAX_FILE_BLOCKS) == (65536, 32)
    assert constants.ROW_FILE_VERSION_KEY == "embedps.row_file"
    assert constants.ROW_FILE_TABLE_KEY_PREFIX == "embedps.table."
    assert int(twins._GOLDEN) == constants.SPLITMIX_INCREMENT


def test_python_types_name_what_the_kernels_name():
    assert get_args(RowEncoding) == constants.EMBEDDING_ENCODINGS
    assert get_args(OptimizerSlotEncoding) == constants.OPTIMIZER_SLOT_ENCODINGS
    assert get_args(specs.RowDtype) == constants.ROW_DTYPES
    assert get_args(specs.SlotDtype) == constants.OPTIMIZER_SLOT_DTYPES
    assert get_args(specs.Combiner) == constants.COMBINERS
    assert get_args(specs.InitializerKind) == constants.INITIALIZER_KINDS
    assert get_args(eviction.Order) == constants.EVICTION_ORDERS
    assert tuple(optimizers.BY_KIND) == constants.OPTIMIZER_KINDS
    assert ("always", *admission.BY_KIND) == constants.ADMISSION_KINDS


def test_mix_of_pipelines_is_the_hash_of_the_kernels():
    """The kernels route by Mix64(id ^ salt); Mix64 is `mix` of the word plus the increment."""
    for name in NAMES:
        words = np.array(IDS, np.int64).view(np.uint64) ^ twins.table_salt(name)
        hashes = mix(words + np.uint64(constants.SPLITMIX_INCREMENT))
        expected = (hashes >> np.uint64(32)) * np.uint64(5) >> np.uint64(32)
        out = kernels.load().embedps_route(
            ids=[tf.constant(IDS, tf.int64)],
            row_splits=[],
            feature_tables=[0],
            tables=[name],
            counted_tables=[],
            num_shards=5,
            num_counted_shards=0,
        )
        for shard, found in enumerate(out.shard_ids):
            of_shard = [i for i, s in zip(IDS, expected, strict=True) if s == shard]
            assert found.numpy().tolist() == of_shard


def test_mix_equals_the_published_generator():
    # The first outputs of SplitMix64 with seed 1234567, from the reference implementation.
    increment = np.uint64(constants.SPLITMIX_INCREMENT)
    with np.errstate(over="ignore"):
        states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * increment
    assert mix(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (
            "embedding_encoding",
            "int2",
            "embedding encoding must be float32, int8, int4, bfloat16 or float16 but got",
        ),
        (
            "optimizer_slot_encoding",
            "int8",
            "optimizer slot encoding must be float32 or bfloat16 but got 'int8'",
        ),
    ],
)
def test_kernels_name_the_choices(tmp_path, attribute, value, message):
    collection = make_collection([make_table("t", 2)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        kernels.load().embedps_write_rows(
            collection._stores[0][0],
            str(tmp_path / "rows.arrow"),
            -1,
            0.0,
            kind="base",
            **{attribute: value},
        )
