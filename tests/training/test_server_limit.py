"""Runs under a limit of bytes that a server's tables share."""

import dataclasses
from typing import Any

import pytest

from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.tables import SizeLimit
from embedps.tables.byte_limits import limited_bytes
from tests.builders import MIXED, TABLES, SumModel, latest, make_trainer, write_dataset

LEAST = sum(limited_bytes(table, 0) for table in TABLES)


def test_a_run_resumes_under_another_limit(tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(6000,), whole=True)
    model_dir = tmp_path / "model"

    def fit(epochs: int, **fields):
        return make_trainer(dataset, model_dir, recommender=MIXED, epochs=epochs, **fields).fit()

    first = fit(1).summary
    assert first["tables"]["row"] == 6000
    lower = fit(2, max_server_bytes=LEAST).summary
    assert 0 < lower["tables"]["row"] <= 1024
    assert lower["evicted"]["row"]["limit"] > 0
    # The checkpoint has the removals: a run without a limit goes on with the rows that stayed.
    step = latest(model_dir).step
    again = make_trainer(dataset, model_dir, recommender=MIXED, epochs=2)
    assert again.collection.stats().rows == lower["tables"]
    assert latest(model_dir).step == step


def test_a_limit_below_the_first_rows_of_all_tables_is_refused(tmp_path):
    dataset = write_dataset(tmp_path / "data", whole=True)
    with pytest.raises(
        UsageError,
        match=f"max_server_bytes must be at least {2 * LEAST} for 3 tables with 2 shards on a "
        f"server but got {LEAST}",
    ):
        make_trainer(
            dataset,
            tmp_path / "model",
            recommender=MIXED,
            num_shards=2,
            max_server_bytes=LEAST,
        )


@pytest.mark.parametrize("rebase", ["one-shot", "intermittent"])
@pytest.mark.parametrize("of", ["server", "table"])
def test_a_byte_limit_is_refused_where_removals_pile_up(tmp_path, rebase, of):
    dataset = write_dataset(tmp_path / "data", whole=True)
    recommender, fields = MIXED, dict[str, Any](max_server_bytes=LEAST)
    if of == "table":
        limit = (SizeLimit(max_bytes=LEAST),)
        tables = [dataclasses.replace(t, eviction=limit) for t in TABLES]
        recommender, fields = Recommender(build=lambda: SumModel(tables=tables)), {}
    name = "max_server_bytes" if of == "server" else "max_bytes of table 'small'"
    with pytest.raises(
        UsageError, match=f"^{name} must go with --rebase consecutive but got {rebase}, whose"
    ):
        make_trainer(dataset, tmp_path / "model", recommender=recommender, rebase=rebase, **fields)
