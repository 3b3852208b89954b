"""Manifests: their JSON, its checksum, and the checks on what they say."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.checkpoint.format.manifest_json import from_json, to_json
from embedps.errors import CheckpointError, CorruptCheckpointError
from tests.checkpoint.builders import make_manifest

PATH = Path("DIR/manifests/00000007.json")


def make_file(path: str = "base-3/dim2/shard-0-of-1.arrow", **changes: object) -> FileEntry:
    settings: dict = {"bytes": 10, "rows": 3, "removed": 1, "xxh3_64": "0123456789abcdef"}
    return FileEntry(path=path, **{**settings, **changes})


def make_save(kind: Any, number: int) -> SaveSet:
    name = f"{kind}-{number}/dim2/shard-0-of-1.arrow"
    since = number - 2 if kind == "delta" else None
    return SaveSet(kind=kind, number=number, step=number, since=since, files=(make_file(name),))


def make_chain() -> list[SaveSet]:
    return [make_save("base", 3), make_save("delta", 5), make_save("delta", 7)]


def example() -> Manifest:
    dense = make_file("dense-7/dense.arrow")
    return make_manifest(7, make_chain(), dense, ledger={"units": [1, {"é": None}]})


def test_json_comes_back_equal():
    assert from_json(to_json(example()), PATH) == example()
    without_dense = dataclasses.replace(example(), dense=None, final=True, progress={"rows": 5})
    assert from_json(to_json(without_dense), PATH) == without_dense


def test_sums_are_over_the_chain():
    assert example().chain_bytes == 30
    assert example().base_number == 3
    assert len(example().files) == 4
    save = make_save("delta", 5)
    assert (save.rows, save.removed, save.bytes) == (3, 1, 10)


def test_checksum_is_over_the_canonical_rest():
    content = json.loads(to_json(example()))
    stored = content.pop("xxh3_64")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert stored == f"{xxhash.xxh3_64_intdigest(canonical):016x}"


def test_layout_of_the_json_does_not_matter_but_content_does():
    content = json.loads(to_json(example()))
    assert from_json(json.dumps(content).encode(), PATH) == example()
    content["step"] += 1
    with pytest.raises(CorruptCheckpointError, match=r"'xxh3_64': expected [0-9a-f]{16}, found"):
        from_json(json.dumps(content).encode(), PATH)


def test_no_single_changed_byte_passes():
    data = to_json(example())
    for at in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[at] ^= 1
        try:
            found = from_json(bytes(damaged), PATH)
        except CheckpointError:
            continue
        # White space only, or a key that is spelled otherwise with the same meaning.
        assert found == example()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "other"}'])
def test_what_is_no_manifest_is_corrupt(data):
    with pytest.raises(CorruptCheckpointError, match=r"00000007\.json"):
        from_json(data, PATH)


def resealed(**changes: object) -> bytes:
    """The example with fields changed and a checksum that fits."""
    content = json.loads(to_json(example()))
    del content["xxh3_64"]
    content.update(changes)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["xxh3_64"] = f"{xxhash.xxh3_64_intdigest(canonical):016x}"
    return json.dumps(content).encode()


def test_newer_version_says_upgrade():
    with pytest.raises(CheckpointError, match="its version is 5, this embedps reads up to 4"):
        from_json(resealed(version=5), PATH)


def test_first_version_is_read_as_deltas_since_the_save_before():
    content = json.loads(resealed(version=1))
    for name in ("xxh3_64", "history"):
        del content[name]
    for save in content["chain"]:
        del save["since"]
        for file in save["files"]:
            del file["blocks"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["xxh3_64"] = f"{xxhash.xxh3_64_intdigest(canonical):016x}"
    found = from_json(json.dumps(content).encode(), PATH)
    assert [save.since for save in found.chain] == [None, 3, 5]
    assert (found.version, found.history) == (1, "")
    assert {file.blocks for file in found.files} == {""}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"history": "x"}, "history must be 16 hex digits but is 'x'"),
        ({"number": "7"}, "field 'number': expected int, found '7'"),
        ({"number": True}, "field 'number': expected int, found True"),
        ({"chain": None}, "field 'chain': expected list, found None"),
        ({"chain": [5]}, "expected an object, found 5"),
        ({"chain": []}, "must begin with a base"),
        ({"num_shards": 0}, "num_shards must be at least 1"),
        ({"tables": [{"name": "C1"}]}, r"must have \['dim', 'group', 'optimizer'\]"),
        ({"dense": {"path": "dense-7/dense.arrow"}}, "field 'bytes': expected int"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(CorruptCheckpointError, match=message) as error:
        from_json(resealed(**changes), PATH)
    assert str(PATH) in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "/etc/passwd"}, "inside the checkpoint directory"),
        ({"path": "base-3/../../x"}, "inside the checkpoint directory"),
        ({"path": ""}, "inside the checkpoint directory"),
        ({"bytes": -1}, "bytes must be at least 0 but is -1"),
        ({"xxh3_64": "0xabc"}, "16 hex digits but is '0xabc'"),
    ],
)
def test_wrong_file_entries_are_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        make_file(**changes)


def test_wrong_chains_are_refused():
    base, delta, later = make_chain()
    with pytest.raises(CheckpointError, match="begin with a base"):
        make_manifest(7, [delta, later])
    with pytest.raises(CheckpointError, match="deltas after the base"):
        make_manifest(7, [base, delta, make_save("base", 7)])
    with pytest.raises(CheckpointError, match=r"grow up to its own but are \[3, 7, 5\]"):
        make_manifest(7, [base, later, delta])
    with pytest.raises(CheckpointError, match="grow up to its own"):
        make_manifest(6, [base, later])
    with pytest.raises(CheckpointError, match="must be base-4/<group>/<file>"):
        SaveSet(kind="base", number=4, step=0, since=None, files=base.files)
    with pytest.raises(CheckpointError, match="a delta, and no base, must have `since`"):
        dataclasses.replace(delta, since=None)
    with pytest.raises(CheckpointError, match="delta-7 must be since 5 or before but is since 6"):
        make_manifest(7, [base, delta, dataclasses.replace(later, since=6)])
    with pytest.raises(CheckpointError, match="blocks must be 1 times 16 hex digits"):
        make_file(blocks="0" * 32)
    with pytest.raises(CheckpointError, match="'base' or 'delta' but is 'full'"):
        make_save("full", 3)


def test_ledger_that_is_no_json_is_refused():
    for bad in ({1, 2}, float("nan")):
        with pytest.raises(CheckpointError, match="must be JSON"):
            to_json(make_manifest(7, make_chain(), ledger={"x": bad}))


NO_COUNTS: list[Any] = [None, "1", -1, 2**63, 2**70, 1.5, True, [], {}]
NO_NAMES: list[Any] = [None, 1, "", "a\0b", "\ud800", [], {}]


def replaced(content: Any, path: tuple, value: object) -> bytes:
    """The example with one value changed, wherever that is, and a checksum that fits."""
    content = json.loads(json.dumps(content))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    content.pop("xxh3_64", None)
    return resealed(**content)


COUNTS = [
    *[("number",), ("step",), ("num_shards",), ("version",)],
    *[("chain", 1, name) for name in ("number", "step", "since")],
    *[("chain", 0, "files", 0, name) for name in ("bytes", "rows", "removed")],
    *[("dense", name) for name in ("bytes", "rows", "removed")],
    *[("tables", 0, "dim"), ("progress", "examples")],
]
NAMES = [
    *[("tables", 0, "name"), ("tables", 0, "group"), ("tables", 0, "optimizer", "kind")],
    *[("chain", 0, "files", 0, "path"), ("dense", "path"), ("chain", 0, "kind")],
]


OTHERS: dict[tuple, list[Any]] = {
    ("wall_time",): [-1, 1e12, 2**70, "1", None, True],
    ("history",): [1, None, "g" * 16, "0" * 17],
    ("final",): [0, None, "false"],
    ("chain", 0, "files"): [None, {}, [1], "x"],
    ("progress", "recoveries"): [1, {}, [1], None],
    ("dense",): [0, "", [], False],
    ("dense", "path"): ["base-3/dim2/x"],
    ("ledger",): [None, 1, []],
    ("progress",): [None, 1, []],
    ("tables",): [None, {}, [1]],
    ("tables", 0, "optimizer"): ["adagrad"],
}
WRONG = [
    (path, value)
    for fields in (dict.fromkeys(COUNTS, NO_COUNTS), dict.fromkeys(NAMES, NO_NAMES), OTHERS)
    for path, values in fields.items()
    for value in values
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_each_field_of_a_wrong_type_or_range_is_refused(path, value):
    content = json.loads(to_json(dataclasses.replace(example(), progress={"examples": 5})))
    assert from_json(replaced(content, ("step",), 8), PATH).step == 8
    with pytest.raises(CheckpointError, match=r"00000007\.json") as error:
        from_json(replaced(content, path, value), PATH)
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


def ledger(**changes: object) -> dict[str, Any]:
    counts = {"units_per_epoch": 9, "prefix": 2, "num_attempts": 7, "repeated": 1}
    lists = {"beyond": [4, 6], "doing": [3, 5], "attempts": [1, 2]}
    return {"dataset": "0" * 32, **counts, **lists, **changes}


def test_ledger_that_a_run_wrote_passes():
    check_ledger(ledger(), PATH)
    check_ledger(ledger(beyond=[], doing=[], attempts=[]), PATH)


WRONG_LEDGERS: dict[str, list[Any]] = {
    **dict.fromkeys(("prefix", "repeated", "num_attempts", "units_per_epoch"), NO_COUNTS),
    **{name: [None, 1, {}, *([v] for v in NO_COUNTS)] for name in ("beyond", "doing", "attempts")},
    "dataset": [None, 1, []],
    "disorder": [{"beyond": [6, 4]}, {"beyond": [4, 4]}, {"beyond": [2]}, {"doing": [3, 3]}],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, each in WRONG_LEDGERS.items() for value in each]
)
def test_each_field_of_a_ledger_is_checked(name, value):
    changes = value if name == "disorder" else {name: value}
    with pytest.raises(CorruptCheckpointError, match=r"00000007\.json: field 'ledger\."):
        check_ledger(ledger(**changes), PATH)


@pytest.mark.parametrize("name", sorted(ledger()))
def test_absent_field_of_a_ledger_is_named(name):
    without = {k: v for k, v in ledger().items() if k != name}
    with pytest.raises(CorruptCheckpointError, match=rf"'ledger\.{name}': .* found nothing"):
        check_ledger(without, PATH)
