"""A network's variables are spread over servers by size."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.cluster.variable_placement import VariablePlacement


@dataclasses.dataclass
class Variable:
    """One of so many floats, on a server."""

    device: str
    shape: tf.TensorShape


class Strategy:
    """Places variables in turn, as TensorFlow's does, unless they are to be beside another."""

    def __init__(self, num_servers: int, *, first: int = 0) -> None:
        self._turns = itertools.count(first)
        self._num_servers = num_servers

    def create(self, *, size: int, colocate_with: Any = None) -> Variable:
        if colocate_with is not None:
            return Variable(colocate_with.device, tf.TensorShape([size]))
        return Variable(f"ps {next(self._turns) % self._num_servers}", tf.TensorShape([size]))


@pytest.mark.parametrize("num_servers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("first", [0, 3])
def test_each_variable_goes_to_the_server_that_holds_the_least(num_servers, first):
    strategy = Strategy(num_servers, first=first)
    placement = VariablePlacement(num_servers)
    sizes = [13 * 512, 512, 512 * 256, 256, 256 * 16, 16, 367 * 512, 512, 512 * 256, 256, 256, 1]
    held = {f"ps {server}": 0 for server in range(num_servers)}
    for size in sizes:
        server = placement.create(strategy.create, size=size).device
        assert held[server] == min(held.values())
        held[server] += size
    in_turn = max(sum(sizes[server::num_servers]) for server in range(num_servers))
    assert max(held.values()) <= in_turn
    if num_servers == 2:
        assert max(held.values()) < 0.6 * np.sum(sizes) < 0.9 * in_turn


def test_what_belongs_to_a_variable_stays_with_it():
    strategy, placement = Strategy(2), VariablePlacement(2)
    large, small = (placement.create(strategy.create, size=size) for size in (1000, 1))
    slot = placement.create(strategy.create, size=1000, colocate_with=large)
    assert slot.device == large.device != small.device
    assert placement.create(strategy.create, size=5).device == small.device
