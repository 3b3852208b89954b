"""The table of ways: its rows are those of the guide, and what it refuses is refused."""

import dataclasses
import re
from collections.abc import Iterator

import pytest

from embedps.engine.steps import ways
from embedps.engine.steps.ways import WAYS, Way, way_of
from embedps.engine.unit_functions import EXCHANGES
from embedps.errors import UsageError
from embedps.run.cluster_config import asked_of
from embedps.run.config import TrainConfig
from tests.builders import ROOT

_COLUMNS = (ways.ASYNCHRONOUS, ways.HYBRID, ways.IN_STEP)


def rows_of_guide(first: str) -> Iterator[list[str]]:
    """The table whose head begins so, without its head."""
    lines = (ROOT / "docs/guides/strategies.md").read_text().splitlines()
    (head,) = (i for i, line in enumerate(lines) if line.startswith(first))
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_guide_has_every_way_with_its_flags() -> None:
    shown = {name: flags for name, flags, *_ in rows_of_guide("| way | flags |")}
    assert shown == {way.name: way.flags for way in WAYS}


def test_the_guide_promises_what_the_table_does() -> None:
    rows = {name: cells for name, *cells in rows_of_guide("| | asynchronous | hybrid | in step |")}

    def check(row: str, pattern: str, promised: str) -> None:
        found = [bool(re.search(pattern, cell)) for cell in rows[row]]
        assert found == [getattr(way, promised) for way in _COLUMNS], row

    check("staleness of the network", "^0 steps$", "fresh_network")
    check("staleness of the rows", "^0 steps$", "fresh_rows")
    check("same bits in each run", "^yes", "same_bits")
    check("equals one process", "^to the bit", "same_bits")
    check("a slow worker", "^all wait", "waits")


def test_only_ways_that_wait_for_all_promise_bits_on_a_cluster() -> None:
    for way in WAYS:
        if way.place != "process" and way.same_bits:
            assert way.waits
            assert way.fresh_network
            assert way.fresh_rows


def test_each_way_has_an_exchange_of_its_own_but_for_groups_that_have_that_of_one_group() -> None:
    by_group = {ways.HYBRID_BY_GROUP: ways.HYBRID, ways.IN_STEP_BY_GROUP: ways.IN_STEP}
    assert EXCHANGES.keys() == set(WAYS) - by_group.keys()
    assert len({*EXCHANGES.values()}) == len(EXCHANGES)
    for way, one_group in by_group.items():
        assert (way.place, way.sync, way.schedules) == (
            one_group.place, one_group.sync, one_group.schedules
        )  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_each_refusal_names_an_option_and_is_made(way: Way) -> None:
    options = {field.name for field in dataclasses.fields(TrainConfig)}
    options |= TrainConfig.from_options(data="d", model_dir="m").to_options().keys()
    way.check({}, way.place)
    for refusal in way.refuses:
        assert {*refusal.options} <= options | {"ranks_inline"}
        asked = dict.fromkeys(refusal.options, 7)
        with pytest.raises(UsageError, match="--"):
            way.check(asked)
        first, *more = refusal.options
        if more:
            way.check({first: 7})
    for place in {other.place for other in WAYS} - {way.place}:
        if way.needs:
            with pytest.raises(UsageError, match="--"):
                way.check({}, place)
        else:  # other places choose other ways
            assert way_of(place=place) != way


def test_options_that_ask_for_nothing_are_not_refused() -> None:
    config = TrainConfig.from_options(
        data="d", model_dir="m", sync="full", num_ps=1, max_staleness_steps=-1
    )
    assert {"sync", "num_ps"} <= asked_of(config).keys()
    assert "max_staleness_steps" not in asked_of(config)
    bound = TrainConfig.from_options(data="d", model_dir="m", num_ps=1, max_staleness_steps=0)
    assert asked_of(bound)["max_staleness_steps"] == 0
    assert bound.cluster.way() == ways.ASYNCHRONOUS
    assert bound.cluster.way("workers") == ways.COLLECTIVES
