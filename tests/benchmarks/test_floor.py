import dataclasses

import numpy as np
import pytest

from benchmarks import peer_suites, rates, workload
from benchmarks.comparison import FLOOR, OURS, System
from benchmarks.peers import floor, protocol
from benchmarks.peers.embedps_dlrm import Embedps
from embedps.cluster.embedded import EmbeddedCluster
from tests.benchmarks.builders import TINY
from tests.benchmarks.test_comparison import case, measure, result

# The layers do not depend on how many ids there are.
FEW_IDS = [
    dataclasses.replace(each, cardinalities=(5,) * len(each.cardinalities))
    for each in workload.WORKLOADS.values()
]
TRAIN = protocol.Variant(task="train", kind="sgd", batch=32)


@pytest.mark.parametrize("of", FEW_IDS, ids=lambda each: each.name)
def test_the_floor_multiplies_by_the_kernels_of_the_network_that_is_trained(of):
    with workload.files(of, workload.make_batches(of, 64)) as folder:
        program = Embedps(protocol.read_work(folder, {}), EmbeddedCluster())
        assert program.prepare(TRAIN)(0.0)["examples"] >= 64
        trained = [v.shape.as_list() for v in program.network.trainable_variables]
    bottom, top = floor.networks(of)
    assert [[*layer] for layer in (*bottom, *top)] == [s for s in trained if len(s) == 2]


def test_an_example_of_w1_takes_as_many_multiply_adds_as_its_layers_have_three_times():
    bottom = 13 * 512 + 512 * 256 + 256 * 64 + 64 * 16
    top = (27 * 26 // 2 + 16) * 512 + 512 * 256 + 256 * 1
    # The first layer of the bottom network has no gradient of its input.
    assert floor.multiply_adds(workload.W1) == 3 * (bottom + top) - 13 * 512
    assert round(floor.multiply_adds(workload.W1) / 1e6, 2) == 1.42


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_has_each_product_once(precision):
    work = dataclasses.replace(TINY, bottom_mlp=(8, 6, 4), top_mlp=(5, 1))
    batch, counted = 32, 0
    function = floor.make_products(work, precision=precision, batch=batch)
    for op in function.graph.get_operations():
        if op.type == "MatMul":
            left = op.inputs[0].shape.as_list()
            inner = left[0] if op.get_attr("transpose_a") else left[1]
            counted += inner * np.prod(op.outputs[0].shape.as_list())
            assert op.inputs[0].dtype == precision
    assert counted == batch * floor.multiply_adds(work)
    made = function()
    assert len(made) == 2 + 5 + 1  # outputs, gradients of kernels, and of the top's input
    assert all(np.isfinite(np.float32(each)).all() for each in made)


def test_rows_move_out_of_their_turn_and_back():
    rows = floor.Rows(10)
    for part in rows._table:
        part[1] = 7
    rows.move(1)
    assert {*np.concatenate([part[0] for part in rows._rows])} == {7}
    assert sum(part.shape[1] for part in rows._table) == 10


@pytest.mark.parametrize("peers", [(), ("tf-ps",)])
def test_each_configuration_of_training_has_a_floor_and_none_of_the_others(peers):
    choice = peer_suites.Choice(peers=peers, precisions=("float32", "bfloat16"), batch_sizes=(64,))
    for suite in peer_suites.SUITES:
        for comparison in peer_suites.make_comparisons(suite, workload.W1, choice):
            assert comparison.systems[0].peer == OURS
            for each in comparison.configurations:
                floors = [c.variant for c in each.cases if c.system == FLOOR]
                ours = each.cases[0].variant
                wanted = [(ours.precision, ours.batch)] if suite == "train" else []
                assert [(v.precision, v.batch) for v in floors] == wanted


@pytest.mark.multiprocess
def test_what_is_measured_is_a_share_of_the_floor_of_its_round():
    systems = [System(title=name, peer=name) for name in (OURS, FLOOR)]
    cases = [case(OURS), case(OURS, "adagrad"), case(FLOOR, "of any")]
    (configuration,) = measure(systems, cases)["configurations"]
    *ours, least = configuration["cases"]
    assert "of_floor" not in least
    assert least["more"]["giga_multiply_adds"]["min"] > 0
    for each in ours:
        shares = [a / b for a, b in zip(each["rates"], least["rates"], strict=True)]
        assert each["of_floor"]["min"] == pytest.approx(min(shares), rel=0.05, abs=0.001)
        assert each["of_floor"]["max"] == pytest.approx(max(shares), rel=0.05, abs=0.001)


def test_a_table_has_a_column_of_the_floor_where_it_was_measured():
    ours, least = [30e3, 10e3, 20e3], [40e3] * 3
    with_floor = [
        result("embedps", ours, ours) | {"of_floor": {"median": 0.5, "min": 0.25, "max": 0.75}},
        result("peer", [10e3] * 3, ours) | {"of_floor": {"median": 0.25, "min": 0.25, "max": 0.25}},
        result("floor", least, ours, kind="of any"),
    ]
    without = [result("embedps", ours, ours), result("peer", [10e3] * 3, ours)]
    configurations = [
        {"group": "SGD", "configuration": "float32 64", "cases": with_floor},
        {"group": "SGD", "configuration": "float32 128", "cases": without},
    ]
    heads, rows = rates.grid(configurations)
    assert heads[1:] == ["float32 64", "of the floor", "float32 128"]
    assert rows == [
        ["embedps, SGD", "20.0k", "0.50", "20.0k"],
        ["peer, SGD", "10.0k  2.00x (1.00 to 3.00)", "0.25", "10.0k  2.00x (1.00 to 3.00)"],
        ["floor", "40.0k  0.50x (0.25 to 0.75)", "", "-"],
    ]
    (verdict,) = rates.verdicts({"ours": "embedps", "configurations": configurations})
    assert "2.00x of peer" in verdict  # and not of the floor
