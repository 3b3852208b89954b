"""A server whose coldest rows are on disk gives the answers of one with all rows in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.evaluation.loaded_model import LoadedModel
from embedps.serving.server import served_model
from embedps.serving.server.serve_config import ServeConfig
from embedps.tables.tiered import Tiered
from tests.builders import Replay, make_trainer, read_split, write_dataset
from tests.serving.server.builders import predict_request, score_of, serving, until
from tests.training.same_bits import FIELDS
from tests.training.tiered_model import ROWS, WIDE

BYTES = 2_200_000  # of 8000 rows of 512 bytes: about a quarter


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("wide")
    return write_dataset(path / "data", train=(ROWS,), whole=True)


@pytest.fixture(scope="module")
def run(wide: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "m"
    for epochs in (1, 2):  # a base, and a delta of all rows
        fields = FIELDS | {"epochs": epochs, "keep_secs": 1e6}
        make_trainer(wide, path, recommender=WIDE, **fields).fit()
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Tiered:
    return Tiered(max_memory_bytes=BYTES, directory=str(tmp_path / "spill"))


def test_the_answers_are_those_with_all_rows_in_memory_while_deltas_come(
    run: Path, wide: Dataset, memory: Tiered, tmp_path: Path
) -> None:
    replay = Replay(run, tmp_path / "m")
    numbers = replay.numbers
    assert len(numbers) > 1
    table = read_split(wide, "train")
    replay.commit(numbers[0])
    with serving(replay.directory, wide, model=WIDE, memory=memory) as (api, model, addresses):
        for number in numbers:
            replay.commit(number)
            until(lambda n=number: model.standing.number == n)
            manifest = replay.source.read(number)
            expected = LoadedModel(WIDE, wide, replay.source, manifest).predict(table)["score"]
            for first in (0, 5000, 2500, 0):  # other rows than those in memory
                part = table.slice(first, 1000)
                response = addresses.client.predict(predict_request(arrays(part)))
                assert response.model_spec.version.value == number
                np.testing.assert_array_equal(score_of(response), expected[first : first + 1000])
        stats = model.model.collection.tier_stats()
        assert stats.rows_on_disk["row"] > ROWS / 2
        assert stats.read > 1000 * len(numbers)
        assert (stats.evicted, stats.errors) == (0, ())
        assert model.model.collection.stats().memory_bytes <= BYTES
        shown = api.metrics.text()
        assert 'embedps_rows_on_disk{model="clicks",ref=""} ' in shown
        assert f'embedps_rows_read_from_disk{{model="clicks",ref=""}} {float(stats.read)}' in shown


def arrays(table: pa.Table) -> dict[str, np.ndarray]:
    return {name: table[name].to_numpy() for name in ("I1", "I2", "row")}


@pytest.mark.parametrize("given", [{"max_memory_bytes": 1}, {"spill_dir": "/tmp"}])
def test_memory_and_its_disk_must_be_given_together(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="max_memory_bytes and spill_dir must be given together"):
        ServeConfig(model_dir=("m",), name=("n",), **given)


def test_memory_without_room_for_the_tables_is_refused(
    run: Path, wide: Dataset, tmp_path: Path
) -> None:
    memory = Tiered(max_memory_bytes=1000, directory=str(tmp_path / "spill"))
    directory = CheckpointDirectory(run)
    manifest = directory.read(directory.numbers()[0])
    with pytest.raises(UsageError, match=r"max_memory_bytes must be at least \d+ for the tables"):
        LoadedModel(WIDE, wide, directory, manifest, memory=memory)


def spill_files(folder: str) -> Iterator[str]:
    """The files of this process that have no name in a folder."""
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.islink(path) and os.readlink(path).startswith(folder):
            yield path


def flip_bits(path: str) -> None:
    with open(path, "r+b", buffering=0) as file:
        data = bytearray(file.read())
        data[100::200] = bytes(byte ^ 4 for byte in data[100::200])
        file.seek(0)
        file.write(data)


def end_files(path: str) -> None:
    os.truncate(path, 4096)


@pytest.mark.parametrize(
    ("breaks", "said"), [(flip_bits, "its checksum is wrong"), (end_files, "the file ends")]
)
def test_rows_that_a_spill_file_lost_are_named_and_read_again(
    run: Path,
    wide: Dataset,
    memory: Tiered,
    breaks: Callable[[str], None],
    said: str,
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(served_model, "_FIRST_RETRY_SECS", 0.01)
    directory = CheckpointDirectory(run)
    table = read_split(wide, "train")
    request = predict_request(arrays(table.slice(0, 4000)))
    with serving(directory, wide, model=WIDE, memory=memory) as (_, model, addresses):
        before = score_of(addresses.client.predict(request))
        broken = model.model

        def ask_for_all() -> None:
            for first in range(0, ROWS, 1000):
                part = table.slice(first, 1000)
                addresses.client.predict(predict_request(arrays(part)))

        files = [*spill_files(memory.directory)]
        assert files
        for path in files:
            breaks(path)
        with pytest.raises(grpc.RpcError, match="embedps-spill-.* offset .*" + said) as raised:
            ask_for_all()
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        until(lambda: model.model is not broken and model.model.is_whole)
        np.testing.assert_array_equal(score_of(addresses.client.predict(request)), before)
