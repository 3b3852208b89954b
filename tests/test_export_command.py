"""`embedps export`: stock TensorFlow loads it and gives the evaluator's scores, bit for bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps import export
from embedps.console import command_line
from embedps.serving.placed_rows import Arrays, OnDisk
from tests import commands
from tests.builders import (
    COLUMNS,
    TINY_DLRM,
    latest,
    make_config,
    read_split,
    write_dataset,
)
from tests.processors import check_stock
from tests.serving.builders import ask, bytes_on_disk, evaluated, examples, tensors


def run(*flags: object) -> int:
    return command_line.run(export.main, [str(flag) for flag in flags])


@pytest.mark.slow
@pytest.mark.multiprocess
def test_stock_tensorflow_gives_the_evaluators_scores(tmp_path: Path, capsys: Any) -> None:
    dataset, model_dir = write_dataset(tmp_path / "set", evaluation=(4500,)), tmp_path / "m"
    config = make_config(dataset, model_dir, eval="none", model="dlrm", delta_steps=20)
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    number = latest(model_dir).number
    paths = {}
    for rows in ("float32", "bfloat16", "int8"):
        output = tmp_path / rows
        assert run("--model-dir", model_dir, "--output", output, "--row-dtype", rows) == 0
        assert [each.name for each in output.iterdir()] == [str(number)]
        paths[rows] = output / str(number)
    assert "signatures serving_default, examples" in capsys.readouterr().out
    table = read_split(dataset)
    whole = tensors(table)
    one_user = {name: array[:1] if name in ("I1", "C1") else array for name, array in whole.items()}
    batches = [
        whole,
        *({n: array[i : i + 1] for n, array in whole.items()} for i in range(3)),
        {name: array[:17] for name, array in whole.items()},
        one_user,
        {name: array[:0] for name, array in whole.items()},
    ]
    some = table.slice(0, 300)
    asked = {"serving_default": batches, "examples": [examples(some, COLUMNS)]}
    exact, halved, quantized = ask(
        {paths["float32"]: asked, paths["bfloat16"]: asked, paths["int8"]: asked}
    )
    model = embedps.load(model_dir)
    want = evaluated(model, table)["score"]
    repeated = table
    for name in ("I1", "C1"):
        first = np.full(table.num_rows, table[name][0].as_py(), whole[name].dtype)
        repeated = repeated.set_column(repeated.column_names.index(name), name, [first])
    for loader in ("load", "session"):
        named = f"{loader}/serving_default"
        check_stock(exact[f"{named}/0/score"], want)
        for i in range(3):
            check_stock(exact[f"{named}/{1 + i}/score"], want[i : i + 1])
        check_stock(exact[f"{named}/4/score"], want[:17])
        check_stock(exact[f"{named}/5/score"], evaluated(model, repeated)["score"])
        assert exact[f"{named}/6/score"].shape == (0,)
        check_stock(exact[f"{loader}/examples/0/score"], want[:300])
        np.testing.assert_allclose(halved[f"{named}/0/score"], want, atol=5e-4)
        np.testing.assert_allclose(quantized[f"{named}/0/score"], want, atol=5e-3)


def test_an_export_says_what_it_is_of(tmp_path: Path, history: Path, capsys: Any) -> None:
    manifest = latest(history)
    given = ("--model-dir", history, "--output", tmp_path)
    first = manifest.number
    assert run(*given) == 0
    found = json.loads((tmp_path / str(first) / "assets.extra" / "embedps.json").read_text())
    assert found["manifest"]["number"] == manifest.number
    assert found["manifest"]["files"] == {
        entry.path: {"bytes": entry.bytes, "xxh3_64": entry.xxh3_64} for entry in manifest.files
    }
    stored = {path for path in (tmp_path / str(first)).rglob("*") if path.is_file()}
    assert {tmp_path / str(first) / name for name in found["files"]} == stored - {
        tmp_path / str(first) / "assets.extra" / "embedps.json"
    }
    rows = embedps.load(history).collection.stats().rows
    assert {name: table["rows"] for name, table in found["tables"].items()} == rows
    before = (tmp_path / str(first) / "saved_model.pb").stat().st_mtime_ns
    capsys.readouterr()
    config = export.ExportConfig(model_dir=str(history), output=str(tmp_path))
    assert export.export(config) == tmp_path / str(first)
    assert "is there already" in capsys.readouterr().out
    file = tmp_path / "export.toml"
    file.write_text(f'model_dir = "{history}"\noutput = "{tmp_path}"\nrow_dtype = "bfloat16"\n')
    assert run("--config", file) == 2
    assert "is there, with rows of float32: give another" in capsys.readouterr().err
    assert run("--config", file, "--row-dtype", "float32") == 0
    assert (tmp_path / str(first) / "saved_model.pb").stat().st_mtime_ns == before
    assert run(*given, "--row-dtype", "int8") == 2
    assert "is there, with rows of float32: give another --output" in capsys.readouterr().err


@pytest.mark.parametrize("row_dtype", ["float32", "int8"])
def test_rows_on_disk_are_exported_bit_for_bit(
    tmp_path: Path, history: Path, row_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = []
    arrays = OnDisk.arrays

    def counted(self: OnDisk) -> Arrays:
        made = arrays(self)
        on_disk.append((sum(array.nbytes for array in made.values()), bytes_on_disk(disk)))
        return made

    monkeypatch.setattr(OnDisk, "arrays", counted)
    disk = tmp_path / "disk"
    given = ("--model-dir", history, "--row-dtype", row_dtype)
    assert run(*given, "--output", tmp_path / "plain") == 0
    assert on_disk == []
    about = json.loads(next(tmp_path.glob("plain/*/assets.extra/embedps.json")).read_text())
    num_rows = sum(table["rows"] for table in about["tables"].values())
    limits = ("--max-memory-bytes", 12 * num_rows, "--spill-dir", disk)
    assert run(*given, *limits, "--output", tmp_path / "tiered") == 0
    assert on_disk
    assert on_disk[-1][1] >= sum(in_arrays for in_arrays, _ in on_disk) > 0
    assert os.listdir(disk) == []
    plain, tiered = (
        tf.train.load_checkpoint(str(next((tmp_path / output).glob("*/variables")) / "variables"))
        for output in ("plain", "tiered")
    )
    names = plain.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    assert tiered.get_variable_to_shape_map().keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"} == names
    assert len(names) > 5
    for name in names:
        np.testing.assert_array_equal(tiered.get_tensor(name), plain.get_tensor(name))


@pytest.mark.slow
@pytest.mark.multiprocess
def test_files_are_the_same_with_rows_on_disk(tmp_path: Path, history: Path) -> None:
    """Names of functions and layers count those of their process, so each export has its own."""
    limits = ("--max-memory-bytes", "12000", "--spill-dir", tmp_path / "disk")
    for output, flags in (("plain", ()), ("tiered", limits)):
        given = ("--model-dir", history, "--output", tmp_path / output, *flags)
        commands.run("-m", "embedps.export", *map(str, given))
    assert (tmp_path / "disk").is_dir()
    for files in ("saved_model.pb", "variables/*"):
        plain, tiered = (
            {path.name: path.read_bytes() for path in (tmp_path / output).glob(f"*/{files}")}
            for output in ("plain", "tiered")
        )
        assert len(plain) == 1 + (files != "saved_model.pb")
        assert plain == tiered


def test_a_limit_that_the_ids_pass_is_refused(tmp_path: Path, history: Path, capsys: Any) -> None:
    given = ("--model-dir", history, "--output", tmp_path / "out")
    limits = ("--max-memory-bytes", 1000, "--spill-dir", tmp_path / "disk")
    assert run(*given, *limits) == 2
    assert "max_memory_bytes must be at least" in capsys.readouterr().err
    assert not any(name.isdigit() for name in os.listdir(tmp_path / "out"))
    assert run(*given, "--max-memory-bytes", 1000) == 2
    assert "must be given together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--number", 9999), "there is no manifest 9999"),
        (("--output", "s3://b/x"), "must be a local directory"),
        (("--row-dtype", "int4"), "invalid choice: 'int4'"),
        (("--model-dir", "/nowhere"), "must be one that embedps.train has trained in"),
    ],
)
def test_wrong_flags_get_one_line(
    tmp_path: Path, history: Path, capsys: Any, change: tuple[object, ...], message: str
) -> None:
    output = tmp_path / "out"
    assert run("--model-dir", history, "--output", output, *change) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not output.exists()


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_export_leaves_nothing_that_is_served(
    tmp_path: Path, copied: Path, number: signal.Signals
) -> None:
    """It ends when it is about to rename the directory: all of it is written then."""
    output = tmp_path / "out"
    output.mkdir()
    script = (
        "import os, signal, sys\n"
        "from embedps import export\n"
        "from embedps.console import command_line\n"
        "from embedps.storage import file_io\n"
        f"file_io.rename = lambda *_: (os.kill(os.getpid(), {int(number)}), signal.pause())\n"
        "sys.exit(command_line.run(export.main, sys.argv[1:]))\n"
    )
    code = -signal.SIGKILL if number == signal.SIGKILL else 130
    commands.run("-c", script, f"--model-dir={copied}", f"--output={output}", code=code)
    left = {path.name for path in output.iterdir()}
    assert not any(name.isdigit() for name in left)
    if number != signal.SIGKILL:
        assert left == set()
        assert os.listdir(copied / "leases") == []
    assert run("--model-dir", copied, "--output", output) == 0
    assert [path.name for path in output.iterdir()] == [str(latest(copied).number)]
