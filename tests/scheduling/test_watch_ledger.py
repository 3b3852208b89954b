"""A ledger that grows: every row of every file once, in order of arrival, over several runs."""

from __future__ import annotations

import collections
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.scheduling import arrivals as module
from embedps.scheduling.arrivals import Arrival, Arrivals
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger, Unit
from embedps.scheduling.watch_ledger import WatchLedger
from tests.builders import make_listed

OPTIONS = LedgerOptions(batch_rows=10, unit_rows=100)
DATASET = make_listed([[30, 80], [250]])  # units of 30, 80, 100, 100 and 50 rows
UNITS, STEPS, ROWS = 5, 3 + 8 + 10 + 10 + 5, 360
WATCHED = Path("/in")


def make(model_dir: Path, *, epochs: int = 2) -> WatchLedger:
    return WatchLedger(DATASET, OPTIONS, Arrivals(model_dir), epochs=epochs, directory=WATCHED)


def take_all(ledger: Ledger) -> list[Unit]:
    units = []
    while (unit := ledger.take()) is not None:
        ledger.begin(unit)
        units.append(unit)
        ledger.done(unit)
    return units


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """A state as a manifest gives it back."""
    check_ledger(state, Path("m"))
    return dict(json.loads(json.dumps(state)))


def test_files_come_after_the_epochs_in_order_of_arrival(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    plain = Ledger(DATASET, OPTIONS, epochs=2)
    assert take_all(ledger) == take_all(plain)
    assert ledger.take() is None
    assert not ledger.finished
    ledger.take_file(Arrival(path="b.parquet", row_groups=(60, 70)))
    ledger.take_file(Arrival(path="empty.parquet", row_groups=()))
    ledger.take_file(Arrival(path="x/a.parquet", row_groups=(15,)))
    assert [
        (u.position, u.path, u.first_row, u.num_rows, u.first_step) for u in take_all(ledger)
    ] == [
        (2 * UNITS, "/in/b.parquet", 0, 60, 2 * STEPS),
        (2 * UNITS + 1, "/in/b.parquet", 60, 70, 2 * STEPS + 6),
        (2 * UNITS + 2, "/in/x/a.parquet", 0, 15, 2 * STEPS + 13),
    ]
    assert ledger.num_units == ledger.num_done == 2 * UNITS + 3
    assert ledger.num_rows == ledger.rows_done() == 2 * ROWS + 145
    assert ledger.steps_done() == 2 * STEPS + 15
    assert ledger.taken == ["b.parquet", "empty.parquet", "x/a.parquet"]


def test_units_that_are_forgotten_stay_counted_at_every_moment(tmp_path: Path) -> None:
    """Another thread reads the total while a unit that is done is dropped."""
    totals = []

    class Queue(collections.deque[Any]):
        def popleft(self) -> Any:
            left = super().popleft()
            totals.append(ledger.num_units)
            return left

    ledger = make(tmp_path, epochs=1)
    ledger._queue = Queue()
    ledger.take_file(Arrival(path="a.parquet", row_groups=(60, 70)))
    take_all(ledger)
    assert totals == [UNITS + 2] * 2


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_unit_is_done_once_whatever_happens(data: st.DataObject) -> None:
    files = data.draw(st.lists(st.lists(st.integers(1, 120), max_size=3), max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        ledger = make(Path(folder))
        state = stored(ledger.state())
        done: dict[int, Unit] = {}
        held: list[Unit] = []
        left = list(enumerate(files))
        for _ in range(data.draw(st.integers(0, 80))):
            action = data.draw(
                st.sampled_from(["take", "take", "done", "done", "file", "save", "die"])
            )
            if action == "file" and left:
                i, groups = left.pop(0)
                ledger.take_file(Arrival(path=f"{i}.parquet", row_groups=tuple(groups)))
            elif action == "take" and (unit := ledger.take()) is not None:
                ledger.begin(unit)
                held.append(unit)
            elif action == "done" and held:
                unit = held.pop(data.draw(st.integers(0, len(held) - 1)))
                ledger.done(unit)
                assert done.setdefault(unit.position, unit) == unit
            elif action == "save":
                state = stored(ledger.state())
            elif action == "die":
                ledger, held = make(Path(folder)), []
                ledger.restore(state)
                assert stored(ledger.state())["prefix"] == state["prefix"]
        for i, groups in left:
            ledger.take_file(Arrival(path=f"{i}.parquet", row_groups=tuple(groups)))
        for unit in [*held, *take_all(ledger)]:
            if unit in held:
                ledger.done(unit)
            assert done.setdefault(unit.position, unit) == unit
        rows = sorted(
            (u.path, u.first_row + i)
            for u in done.values()
            if u.position >= 2 * UNITS
            for i in range(u.num_rows)
        )
        assert rows == [
            (f"/in/{i}.parquet", row)
            for i, groups in enumerate(files)
            for row in range(sum(groups))
        ]
        assert ledger.rows_done() == 2 * ROWS + len(rows)
        steps = sorted((u.first_step, -(-u.num_rows // 10)) for u in done.values())
        assert all(a + n == b for (a, n), (b, _) in itertools.pairwise(steps))


def test_a_manifest_names_what_is_in_progress_and_stays_small(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    take_all(ledger)
    for i in range(300):
        ledger.take_file(Arrival(path=f"{i}.parquet", row_groups=(90, 90)))
        units = [ledger.take(), ledger.take()]
        assert None not in units
        for unit in units:
            ledger.begin(unit)  # type: ignore[arg-type]
        ledger.done(units[1])  # type: ignore[arg-type]
        state = ledger.state()
        assert state["watched"] == {
            "first_unit": 2 * UNITS,
            "in_progress": [f"{i}.parquet"],
            "left_out_rows": 0,
        }
        assert len(json.dumps(state)) < 400
        ledger.done(units[0])  # type: ignore[arg-type]
    assert len(ledger._queue) == 0
    assert ledger.rows_done() == 2 * ROWS + 300 * 180


def test_a_unit_that_is_left_out_is_done_without_its_rows(tmp_path: Path) -> None:
    ledger = make(tmp_path)
    take_all(ledger)
    ledger.take_file(Arrival(path="a.parquet", row_groups=(90, 90)))
    ledger.take_file(Arrival(path="b.parquet", row_groups=(30,)))
    assert ledger.num_waiting == 3
    units = [unit for unit in (ledger.take(), ledger.take(), ledger.take()) if unit is not None]
    assert ledger.num_waiting == 0
    for unit in units:
        ledger.begin(unit)
    ledger.leave_out(units[1])
    assert ledger.state()["watched"]["left_out_rows"] == 90
    for unit in (units[0], units[2]):
        ledger.done(unit)
    again = make(tmp_path)
    again.restore(stored(ledger.state()))
    for each in (ledger, again):
        assert each.take() is None
        assert each.rows_done() == 2 * ROWS + 120
        assert each.steps_done() == 2 * STEPS + 9 + 9 + 3
    with pytest.raises(UsageError, match="cannot leave out"):
        ledger.leave_out(ledger.units_of(0)[0])


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    ledger = make(tmp_path / "m")
    take_all(ledger)
    ended = stored(ledger.state())
    ledger.take_file(Arrival(path="a.parquet", row_groups=(10,)))
    take_all(ledger)
    state = stored(ledger.state())
    with pytest.raises(UsageError, match="give --watch to go on"):
        Ledger(DATASET, OPTIONS, epochs=2).restore(state)
    for epochs in (1, 3):
        with pytest.raises(UsageError, match="another number of epochs"):
            make(tmp_path / "m", epochs=epochs).restore(state)
    with pytest.raises(CheckpointError, match=r"has 11 units done, but the list .* has 10"):
        make(tmp_path / "other").restore(state)
    plain = Ledger(DATASET, OPTIONS, epochs=2)
    take_all(plain)
    make(tmp_path / "m").restore(stored(plain.state()))  # a run that begins to watch
    with pytest.raises(UsageError, match="another number of epochs"):
        make(tmp_path / "m", epochs=1).restore(stored(plain.state()))
    assert ended["watched"]["in_progress"] == []
    for wrong in ({"first_unit": -1}, {"first_unit": 10, "left_out_rows": -1}):
        with pytest.raises(CorruptCheckpointError, match=r"ledger\.watched"):
            check_ledger({**ended, "watched": wrong}, Path("m"))


def test_the_list_survives_and_is_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        Arrival(path=f"{i}.parquet", row_groups=(i,), scores={"auc": None}, time=1.5)
        for i in range(9)
    ]
    for i in range(0, 9, 3):
        Arrivals(tmp_path).append(files[i : i + 3])
    refused = Arrival(path="é", refused="why")
    Arrivals(tmp_path).append([refused])
    assert Arrivals(tmp_path).files == [*files, refused]
    folder = tmp_path / module.FOLDER
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert len(before) == 4
    monkeypatch.setattr(module, "_MAX_FILES", 5)
    Arrivals(tmp_path).append([refused])
    listed = [*files, refused, refused]
    assert [path.name for path in folder.iterdir()] == ["000000000000.json"]
    assert Arrivals(tmp_path).files == listed
    (folder / "000000000006.json").write_bytes(before["000000000006.json"])  # of an ended merge
    assert Arrivals(tmp_path).files == listed
    assert [path.name for path in folder.iterdir()] == ["000000000000.json"]
    later = Arrivals(tmp_path)
    for i in range(7):
        later.append([Arrival(path=f"later-{i}", row_groups=(1,), event_ms=i)])
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{i:012d}.json" for i in (0, 11, 16, 17)]
    assert Arrivals(tmp_path).files == later.files


def test_a_damaged_list_is_one_line(tmp_path: Path) -> None:
    for i in range(3):
        Arrivals(tmp_path).append([Arrival(path=f"{i}.parquet", row_groups=(1,))])
    folder = tmp_path / module.FOLDER
    (folder / "000000000001.json").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"expected file 1, found 000000000002\.json"):
        Arrivals(tmp_path)
    for text in (
        "{",
        "[1]",
        '[{"path": 1, "row_groups": []}]',
        '[{"row_groups": [-1], "path": ""}]',
        '[{"row_groups": [], "path": "", "event_ms": "now"}]',
    ):
        (folder / "000000000001.json").write_text(text)
        with pytest.raises(
            CorruptCheckpointError, match="must be a list of watched files"
        ) as error:
            Arrivals(tmp_path)
        assert "\n" not in str(error.value)
