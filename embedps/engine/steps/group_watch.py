"""Watches, from the client, the groups in which workers' parts of steps are applied."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from embedps.engine.steps.grouped import GroupExchange
from embedps.tables import group_ops
from embedps.tables.group_ops import Group


class GroupWatch:
    """Applies groups that no worker is left to apply, and lets no group wait for lost workers."""

    def __init__(self, exchange: GroupExchange, strategy: tf.distribute.Strategy) -> None:
        """Takes what has the groups; its unit function must be traced before `poll`."""
        self._exchange = exchange
        self._open = 0  # the group that was open at the last poll
        self._awaited: list[int] = []  # the workers that it waited for then

        @tf.function(input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)])
        def apply(index: tf.Tensor, parts: tf.Tensor) -> None:
            strategy.run(lambda: exchange.apply(Group(index, parts)))

        self._apply = apply

    def num_closed(self) -> int:
        """Counts the groups that closed."""
        return max(self.last_groups())

    def last_groups(self) -> dict[int, np.ndarray]:
        """Lists the last groups: by index the numbers of their parts. The last one is open."""
        return self._look().parts

    def poll(self) -> None:
        """Applies what has closed, if no group has since the last call."""
        groups, self._awaited = self._look()
        open_now = max(groups)
        if open_now == self._open:
            for index in range(self._exchange.num_applied(), open_now):
                self._apply(tf.constant(index, tf.int64), tf.constant(groups[index], tf.int64))
        self._open = open_now

    def awaited(self) -> tuple[int, list[int]]:
        """Tells, as of the last poll, the open group and the workers that it waits for."""
        return self._open, self._awaited

    def forget(self, workers: Iterable[int]) -> None:
        """Lets no group wait for workers that do not answer, until they do."""
        device, log = self._exchange.first_log
        for worker in workers:
            with tf.device(device):
                group_ops.forget_worker(log, worker)

    def _look(self) -> group_ops.LastGroups:
        device, log = self._exchange.first_log
        with tf.device(device):
            return group_ops.last_groups(log)
