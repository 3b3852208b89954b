import math

import pytest

from embedps.errors import UsageError
from embedps.tables import FeatureSpec, Initializer, RowwiseAdagrad, TableSpec
from embedps.tables.specs import check


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "name must not be empty"),
        ({"dim": 0}, r"'C1': dim must be in \[1, 65536\] but got 0"),
        ({"dim": 65537}, r"'C1': dim must be in \[1, 65536\] but got 65537"),
        ({"capacity": -1}, r"'C1': capacity must be in \[0, 2\^63\) but got -1"),
        ({"capacity": 2**63}, "'C1': capacity must be in"),
        ({"seed": 2**63}, "'C1': seed must be a signed 64-bit number"),
    ],
)
def test_table_spec_refuses_wrong_field(fields, text):
    with pytest.raises(UsageError, match=text):
        TableSpec(**{"name": "C1", "dim": 4, **fields})


def test_table_spec_defaults_to_uniform_of_inverse_root_dim():
    spec = TableSpec(name="C1", dim=16)
    assert spec.initializer == Initializer(kind="uniform", low=-0.25, high=0.25)
    assert spec.optimizer == RowwiseAdagrad()
    with pytest.raises(AttributeError):
        spec.dim = 8  # type: ignore[misc]


def test_table_spec_json_tells_specs_apart():
    one = TableSpec(name="C1", dim=16)
    assert one.to_json() == TableSpec(name="C1", dim=16).to_json()
    for other in (
        TableSpec(name="C2", dim=16),
        TableSpec(name="C1", dim=8, initializer=one.initializer),
        TableSpec(name="C1", dim=16, optimizer=RowwiseAdagrad(epsilon=1e-4)),
        TableSpec(name="C1", dim=16, initializer=Initializer.normal(0.1)),
        TableSpec(name="C1", dim=16, seed=1),
        TableSpec(name="C1", dim=16, capacity=10),
    ):
        assert other.to_json() != one.to_json()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "zeros"}, "must be constant, uniform or normal but got 'zeros'"),
        ({"kind": "uniform", "low": 1.0, "high": 0.0}, "low <= high"),
        ({"kind": "normal", "high": -1.0}, "deviation must be >= 0 but got -1"),
        ({"low": math.nan}, "must be finite"),
        ({"kind": "normal", "high": math.inf}, "must be finite"),
        ({"low": -1e300}, "must be finite as float32"),
    ],
)
def test_initializer_refuses_wrong_field(fields, text):
    with pytest.raises(UsageError, match=text):
        Initializer(**fields)


def test_initializer_shorthands_name_their_kind():
    assert Initializer.uniform(0.5) == Initializer(kind="uniform", low=-0.5, high=0.5)
    assert Initializer.normal(2.0) == Initializer(kind="normal", low=0.0, high=2.0)


def test_feature_spec_refuses_unknown_combiner():
    with pytest.raises(UsageError, match="'f': combiner must be sum, mean or sqrtn but got 'max'"):
        FeatureSpec(name="f", table="t", combiner="max")  # type: ignore[arg-type]


def test_check_refuses_inconsistent_declarations():
    t, u = TableSpec(name="t", dim=4), TableSpec(name="u", dim=4)
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
