import pytest

from embedps.errors import UsageError
from embedps.tables import SGD, Adagrad, FeatureSpec, RowwiseAdagrad, TableSpec
from embedps.tables.groups import group_tables


def features_of(*tables):
    return [FeatureSpec(name=f"f_{t.name}", table=t.name) for t in tables]


def test_tables_of_equal_dim_and_optimizer_share_a_group():
    tables = [TableSpec(name=f"C{i}", embedding_dim=16) for i in range(26)]
    (group,) = group_tables(tables, features_of(*tables))
    assert group.tables == tuple(tables)
    assert group.name == "dim16-rowwise_adagrad"
    assert (group.dim, group.optimizer) == (16, RowwiseAdagrad())
    assert group.feature_tables == list(range(26))


def test_dim_or_optimizer_or_its_settings_part_groups():
    a = TableSpec(name="a", embedding_dim=8, optimizer=Adagrad())
    b = TableSpec(name="b", embedding_dim=16, optimizer=Adagrad())
    c = TableSpec(name="c", embedding_dim=8, optimizer=SGD())
    d = TableSpec(name="d", embedding_dim=8, optimizer=Adagrad(epsilon=1e-3))
    e = TableSpec(name="e", embedding_dim=8, optimizer=Adagrad(), seed=3, capacity=9)
    f = TableSpec(name="f", embedding_dim=8, optimizer=Adagrad(epsilon=1e-2))
    groups = group_tables([a, b, c, d, e, f], features_of(f, e, d, c, b, a))
    assert [[t.name for t in g.tables] for g in groups] == [["a", "e"], ["b"], ["c"], ["d"], ["f"]]
    assert [g.name for g in groups] == [
        "dim8-adagrad",
        "dim16-adagrad",
        "dim8-sgd",
        "dim8-adagrad-2",
        "dim8-adagrad-3",
    ]
    assert [f.name for f in groups[0].features] == ["f_e", "f_a"]
    assert groups[0].feature_tables == [1, 0]


def test_features_share_a_table_and_unused_tables_are_left_out():
    tables = [TableSpec(name=n, embedding_dim=4) for n in ("unused", "items", "users")]
    features = [
        FeatureSpec(name="clicked", table="items", ragged=True),
        FeatureSpec(name="user", table="users"),
        FeatureSpec(name="shown", table="items"),
    ]
    (group,) = group_tables(tables, features)
    assert [t.name for t in group.tables] == ["items", "users"]
    assert group.feature_tables == [0, 1, 0]


def test_tables_that_features_bring_along_are_grouped():
    items = TableSpec(name="items", embedding_dim=4)
    features = [FeatureSpec(name="user", table="users"), FeatureSpec(name="item", table=items)]
    (group,) = group_tables([TableSpec(name="users", embedding_dim=4)], features)
    assert [t.name for t in group.tables] == ["users", "items"]
    assert group.feature_tables == [0, 1]
    assert group.table_indexes(features[1:]) == [1]


def test_plan_refuses_undeclared_table():
    with pytest.raises(UsageError, match="looks up table 'u'"):
        group_tables([TableSpec(name="t", embedding_dim=3)], [FeatureSpec(name="f", table="u")])
