import json
import math
from typing import Any

import numpy as np
import pytest

from embedps.errors import UsageError
from embedps.tables import (
    Chance,
    FeatureSpec,
    Ftrl,
    Initializer,
    LazyAdam,
    MinCount,
    RowwiseAdagrad,
    TableSpec,
    Tiered,
)
from embedps.tables.specs import check, tables_of

WRONG: Any = "x"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"embedding_dim": 0}, r"'C1': embedding_dim must be in \[1, 65536\] but got 0"),
        ({"embedding_dim": 65537}, r"'C1': embedding_dim must be in \[1, 65536\] but got 65537"),
        ({"capacity": -1}, r"'C1': capacity must be in \[0, 2\^63\) but got -1"),
        ({"capacity": 2**63}, "'C1': capacity must be in"),
        ({"absent": "none"}, "'C1': absent must be one of zeros, initial but got 'none'"),
        ({"seed": 2**63}, "'C1': seed must be a signed 64-bit number"),
        ({"name": 3}, "a table's name must be a text but got 3"),
        ({"embedding_dim": 4.0}, "'C1': embedding_dim must be an integer but got 4.0"),
        ({"embedding_dim": "4"}, "'C1': embedding_dim must be an integer but got '4'"),
        ({"embedding_dim": True}, "'C1': embedding_dim must be an integer but got True"),
        ({"seed": None}, "'C1': seed must be an integer but got None"),
        ({"capacity": 1.5}, "'C1': capacity must be an integer but got 1.5"),
        ({"optimizer": "adam"}, r"'C1': optimizer must be one of embedps, .* but got 'adam'"),
        (
            {"optimizer": RowwiseAdagrad},
            "'C1': optimizer must be one of embedps, .* but got <class",
        ),
        ({"initializer": [[1.0, 2.0]]}, r"'C1': initializer must be None or .* but got \[\[1.0, 2"),
        ({"initializer": abs}, "'C1': initializer must be None or .* but got <built-in function"),
        ({"initializer": "uniform"}, "'C1': initializer must be None or .* but got 'uniform'"),
        (
            {"admission": MinCount},
            "'C1': admission must be MinCount, Chance or None but got <class",
        ),
        ({"eviction": ["ttl"]}, "'C1': eviction must have policies .* but got 'ttl'"),
    ],
)
def test_table_spec_refuses_wrong_field(fields, text):
    with pytest.raises(UsageError, match=text):
        TableSpec(**{"name": "C1", "embedding_dim": 4, **fields})


def test_table_spec_defaults_to_uniform_of_inverse_root_dim():
    spec = TableSpec(name="C1", embedding_dim=16)
    assert spec.initializer == Initializer(kind="uniform", low=-0.25, high=0.25)
    assert spec.optimizer == RowwiseAdagrad()
    with pytest.raises(AttributeError):
        spec.embedding_dim = 8  # type: ignore[misc]


def test_table_spec_json_tells_specs_apart():
    one = TableSpec(name="C1", embedding_dim=16)
    assert one.to_json() == TableSpec(name="C1", embedding_dim=16).to_json()
    for other in (
        TableSpec(name="C2", embedding_dim=16),
        TableSpec(name="C1", embedding_dim=8, initializer=one.initializer),
        TableSpec(name="C1", embedding_dim=16, optimizer=RowwiseAdagrad(epsilon=1e-4)),
        TableSpec(name="C1", embedding_dim=16, initializer=Initializer.normal(0.1)),
        TableSpec(name="C1", embedding_dim=16, seed=1),
        TableSpec(name="C1", embedding_dim=16, capacity=10),
        TableSpec(name="C1", embedding_dim=16, absent="initial"),
        TableSpec(name="C1", embedding_dim=16, admission=MinCount(count=2)),
        TableSpec(name="C1", embedding_dim=16, admission=Chance(probability=0.5)),
    ):
        assert other.to_json() != one.to_json()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "zeros"}, "must be one of constant, uniform, normal, function but got 'zeros'"),
        ({"kind": "uniform", "low": 1.0, "high": 0.0}, "low <= high"),
        ({"kind": "normal", "high": -1.0}, "deviation must be >= 0 but got -1"),
        ({"low": math.nan}, "must be finite"),
        ({"kind": "normal", "high": math.inf}, "must be finite"),
        ({"low": -1e300}, "must be finite as float32"),
        ({"low": "0.1"}, "Initializer.low must be a number but got '0.1'"),
    ],
)
def test_initializer_refuses_wrong_field(fields, text):
    with pytest.raises(UsageError, match=text):
        Initializer(**fields)


def test_initializer_shorthands_name_their_kind():
    assert Initializer.uniform(0.5) == Initializer(kind="uniform", low=-0.5, high=0.5)
    assert Initializer.normal(2.0) == Initializer(kind="normal", low=0.0, high=2.0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"combiner": "max"}, "'f': combiner must be one of sum, .*none but got 'max'"),
        (
            {"ragged": True, "max_length": 3},
            "'f': max_length must go with ragged=True and combiner='none' but got",
        ),
        ({"combiner": "none", "max_length": 3}, "but got ragged=False and combiner='none'"),
        ({"combiner": "none", "ragged": True, "max_length": 0}, r"must be in \[1, .* but got 0"),
        ({"combiner": "none", "ragged": True, "max_length": 10**7}, "but got 10000000"),
        ({"name": 3}, "a feature's name must be a text but got 3"),
        ({"name": ""}, "a feature's name must not be empty"),
        ({"table": 3}, "'f': table, a TableSpec or the name of one, must be a text but got 3"),
        ({"combiner": ["sum"]}, "'f': combiner must be a text but got \\['sum'\\]"),
        ({"ragged": "yes"}, "'f': ragged must be True or False but got 'yes'"),
        ({"max_length": 2.5}, "'f': max_length must be an integer but got 2.5"),
        ({"rate_as": 3}, "'f': rate_as must be a text but got 3"),
    ],
)
def test_feature_spec_refuses_wrong_field(fields, text):
    with pytest.raises(UsageError, match=text):
        FeatureSpec(**{"name": "f", "table": "t", **fields})


def test_feature_names_its_table_and_tells_whether_rows_stay():
    t = TableSpec(name="t", embedding_dim=4)
    assert FeatureSpec(name="f", table="t").table_name == "t"
    assert FeatureSpec(name="f", table=t).table_name == "t"
    assert FeatureSpec(name="f", table=t, ragged=True, combiner="none", max_length=3).keeps_rows
    assert not FeatureSpec(name="f", table=t, ragged=True).keeps_rows
    assert FeatureSpec(name="f", table=t, ragged=True).combiner == "mean"
    assert not FeatureSpec(name="f", table=t, combiner="none").keeps_rows


def test_tables_are_declared_ones_then_those_of_features():
    t, u, v = (TableSpec(name=n, embedding_dim=4) for n in "tuv")
    features = [
        FeatureSpec(name="a", table=v),
        FeatureSpec(name="b", table="t"),
        FeatureSpec(name="c", table=TableSpec(name="v", embedding_dim=4)),  # equal: the same table
        FeatureSpec(name="d", table="v"),
        FeatureSpec(name="e", table=t),
    ]
    assert tables_of(features, [u, t]) == (u, t, v)
    assert tables_of(features[:1]) == (v,)


def test_tables_of_refuses_two_declarations_that_differ():
    features = [
        FeatureSpec(name="a", table=TableSpec(name="t", embedding_dim=4)),
        FeatureSpec(name="b", table=TableSpec(name="t", embedding_dim=4, seed=3, capacity=9)),
    ]
    with pytest.raises(UsageError) as refused:
        tables_of(features)
    assert str(refused.value) == (
        "feature 'b' declares table 't' with seed=3, capacity=9, but another declaration has "
        "seed=0, capacity=0: make them equal, or give one table another name"
    )
    with pytest.raises(
        UsageError, match=r"with embedding_dim=4.*another declaration has embedding_dim=8"
    ):
        tables_of(features[:1], [TableSpec(name="t", embedding_dim=8)])
    with pytest.raises(UsageError, match="'c' looks up table 'x', which is not among"):
        tables_of([FeatureSpec(name="c", table="x")])


def test_check_refuses_inconsistent_declarations():
    t, u = TableSpec(name="t", embedding_dim=4), TableSpec(name="u", embedding_dim=4)
    f = FeatureSpec(name="f", table="t")
    check([t, u], [f, FeatureSpec(name="g", table="t")])
    with pytest.raises(UsageError, match=r"table names must be unique but \['t'\] are repeated"):
        check([t, u, t], [f])
    with pytest.raises(UsageError, match=r"feature names must be unique but \['f'\]"):
        check([t], [f, f])
    with pytest.raises(UsageError, match="at least one feature"):
        check([t], [])
    with pytest.raises(UsageError, match=r"'g' looks up table 'v', which is not .*\['t', 'u'\]"):
        check([t, u], [FeatureSpec(name="g", table="v")])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MinCount(count=WRONG), "MinCount.count must be an integer but got 'x'"),
        (lambda: Chance(probability=WRONG), "Chance.probability must be a number but got 'x'"),
        (
            lambda: RowwiseAdagrad(epsilon=WRONG),
            "RowwiseAdagrad.epsilon must be a number but got 'x'",
        ),
        (
            lambda: tables_of(WRONG),
            "each of the features must be an embedps.FeatureSpec but got 'x'",
        ),
    ],
)
def test_other_declarations_refuse_wrong_types(make, text):
    with pytest.raises(UsageError, match=text):
        make()


def test_integers_of_numpy_are_plain():
    numbers: dict[str, Any] = {"embedding_dim": np.int64(4), "capacity": np.int32(9)}
    spec = TableSpec(name="C1", **numbers)
    assert type(spec.embedding_dim) is type(spec.capacity) is int


def test_stored_names_are_read_as_fields_and_written_as_before():
    ftrl = Ftrl(
        initial_accumulator_value=0.5,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
    )
    adam = LazyAdam(beta_1=0.5, beta_2=0.75, epsilon=1e-5)
    before = {
        "ftrl": {"kind": "ftrl", "initial_accumulator": 0.5, "l1": 0.01, "l2": 0.02},
        "adam": {"kind": "lazy_adam", "beta1": 0.5, "beta2": 0.75, "epsilon": 1e-5},
    }
    for name, optimizer in (("ftrl", ftrl), ("adam", adam)):
        table = TableSpec(name=name, embedding_dim=3, optimizer=optimizer)
        stored = {
            "name": name,
            "dim": 3,
            "optimizer": before[name],
            "initializer": {"kind": "uniform", "low": -(3**-0.5), "high": 3**-0.5},
            "seed": 0,
            "capacity": 0,
        }
        assert table.to_json() == stored
        assert TableSpec.from_config(stored) == table


def test_a_config_has_the_memory_that_a_checkpoint_has_not(tmp_path):
    memory = Tiered(max_memory_bytes=10**9, directory=str(tmp_path))
    for table in (
        TableSpec(name="t", embedding_dim=3, memory=memory),
        TableSpec(name="t", embedding_dim=3, in_memory=True),
    ):
        config = json.loads(json.dumps(table.get_config()))
        assert TableSpec.from_config(config) == table
        assert not {"memory", "in_memory"} & {*table.to_json()}
