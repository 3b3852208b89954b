"""The options of tables, in a model of the user's own."""

import dataclasses
from typing import Any

import pytest

import embedps
from embedps import train
from embedps.errors import UsageError
from embedps.tables.table_options import TableOptions
from tests.builders import write_dataset

MODULE = """
import dataclasses

import embedps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(embedps.TableOptions):
    embedding_dim: int = 6
    hidden: int = 8


def make(config, dataset):
    features = (
        embedps.FeatureSpec(name="C1", table=config.table("users")),
        embedps.FeatureSpec(name="C2", table=config.counts("seen")),
    )
    return embedps.Recommender(build=lambda: embedps.Embeddings(features))
"""


def test_a_users_model_has_the_flags_and_keys_of_tables(tmp_path, monkeypatch):
    (tmp_path / "model_with_tables.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run.toml").write_text("min_count = 3\nrow_ttl_steps = 5\nhidden = 4\n")
    dataset = write_dataset(tmp_path / "set")
    run = train.parse(
        [
            *("--model=model_with_tables", f"--data={dataset.directory}", "--model-dir=m"),
            *("--row-dtype=float16", "--slot-dtype=bfloat16", "--sparse-optimizer=adagrad"),
            *("--row-weight-decay=0.5", "--min-row-norm=0.25", f"--config={tmp_path}/run.toml"),
        ]
    )
    assert run.model_config.hidden == 4
    made = run.recommender(dataset)
    tables = {table.name: table for table in made.build().tables}
    life = embedps.TimeToLive(steps=5)
    assert tables["users"] == embedps.TableSpec(
        name="users",
        embedding_dim=6,
        optimizer=embedps.Adagrad(weight_decay=0.5),
        admission=embedps.MinCount(count=3),
        eviction=(life, embedps.MinNorm(norm=0.25)),
        row_dtype="float16",
        slot_dtype="bfloat16",
    )
    counts = tables["seen"]
    assert (counts.embedding_dim, counts.admission, counts.eviction) == (1, None, (life,))


def test_every_option_of_tables_changes_the_table():
    changed: dict[str, Any] = {
        "embedding_dim": 3,
        "sparse_optimizer": "ftrl",
        "row_weight_decay": 0.5,
        "row_dtype": "float16",
        "slot_dtype": "bfloat16",
        "min_count": 2,
        "min_count_expire_steps": 7,
        "admit_probability": 0.5,
        "row_ttl_steps": 1,
        "row_ttl_hours": 1,
        "max_table_rows": 9,
        "max_table_bytes": 1 << 20,
        "eviction_order": "least_frequent",
        "min_row_norm": 0.1,
    }
    needed: dict[str, Any] = {
        "min_count_expire_steps": {"min_count": 2},
        "eviction_order": {"max_table_rows": 9},
    }
    assert set(changed) == {field.name for field in dataclasses.fields(TableOptions)}
    for name, value in changed.items():
        before = TableOptions(**needed.get(name, {}))
        after = dataclasses.replace(before, **{name: value})
        assert before.table("t") != after.table("t"), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_count": 2, "admit_probability": 0.5}, "by min_count or by admit_probability"),
        ({"min_count_expire_steps": 2}, "min_count, which must be above 1 but is 1"),
        ({"row_dtype": "int8"}, "row_dtype must be one of .* but got 'int8'"),
        ({"embedding_dim": 0}, "embedding_dim must be at least 1 but got 0"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        TableOptions(**options)
