"""The kernels' arithmetic in NumPy: SplitMix64 routing, initial values, sparse optimizers.

The constants are literals here on purpose: tests compare them with those of the kernels.
"""

import numpy as np

from embedps.tables import SGD, Adagrad, Ftrl, LazyAdam, Optimizer, RowwiseAdagrad, TableSpec

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix64(x: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's finalizer to uint64."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def table_salt(name: str) -> np.uint64:
    """Hashes a name by FNV-1a of 64 bits, with Python's integers."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return np.uint64(h)


def shard_of(name: str, ids, num_shards: int) -> np.ndarray:
    """Computes the shard of each id with exact integers."""
    hashes = mix64(np.asarray(ids, np.int64).astype(np.uint64) ^ table_salt(name))
    return np.array([(int(h) >> 32) * num_shards >> 32 for h in hashes])


def initial_values(spec: TableSpec, ids) -> np.ndarray:
    """Returns float32 [n, dim], the values of new rows of these ids."""
    init = spec.initializer
    assert init is not None
    ids = np.asarray(ids, np.int64).astype(np.uint64)
    if init.kind == "constant":
        return np.full((len(ids), spec.dim), init.low, np.float32)
    seed = np.array([spec.seed % 2**64], np.uint64)
    base = mix64(mix64(seed ^ table_salt(spec.name)) ^ ids)[:, None]
    width = spec.dim + spec.dim % 2
    with np.errstate(over="ignore"):
        words = mix64(base + np.arange(width, dtype=np.uint64) * _GOLDEN)
    low, high = np.float32(init.low), np.float32(init.high)
    if init.kind == "uniform":
        u = (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return (low + (high - low) * u)[:, : spec.dim]
    bits = (words >> np.uint64(11)).astype(np.float64)
    radius = np.sqrt(-2 * np.log((bits[:, 0::2] + 1) * 2.0**-53))
    angle = 2 * np.pi * (bits[:, 1::2] * 2.0**-53)
    pairs = np.stack([np.cos(angle), np.sin(angle)], axis=-1) * radius[..., None]
    values = np.float64(low) + np.float64(high) * pairs.reshape(len(ids), width)
    return values[:, : spec.dim].astype(np.float32)


def _f(x: float) -> float:
    """Rounds a setting to float32, as the kernels do."""
    return float(np.float32(x))


class ReferenceRow:
    """One row under an optimizer, in float64."""

    def __init__(self, optimizer: Optimizer, initial: np.ndarray) -> None:
        self.optimizer = optimizer
        self.w = initial.astype(np.float64)
        accumulator = _f(optimizer.settings().get("initial_accumulator", 0.0))
        self.slots: list[np.ndarray] = [
            np.full(width, accumulator if name == "accumulator" else 0.0)
            for name, width in optimizer.optimizer_slot_widths(len(initial)).items()
        ]
        self.updates = 0

    def update(self, g: np.ndarray, learning_rate: float) -> None:
        g, lr, o = g.astype(np.float64), _f(learning_rate), self.optimizer
        self.updates += 1
        self.w *= 1 - lr * _f(o.weight_decay)
        if isinstance(o, SGD):
            self.w -= lr * g
        elif isinstance(o, Adagrad):
            self.slots[0] += g**2
            self.w -= lr * g / (np.sqrt(self.slots[0]) + _f(o.epsilon))
        elif isinstance(o, RowwiseAdagrad):
            self.slots[0] += np.mean(g**2)
            self.w -= lr * g / (np.sqrt(self.slots[0]) + _f(o.epsilon))
        elif isinstance(o, LazyAdam):
            b1, b2, t = _f(o.beta1), _f(o.beta2), self.updates
            m, v = self.slots
            m[:] = b1 * m + (1 - b1) * g
            v[:] = b2 * v + (1 - b2) * g**2
            self.w -= lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + _f(o.epsilon))
        elif isinstance(o, Ftrl):
            l1, l2 = _f(o.l1), _f(o.l2)
            z, n = self.slots
            grown = n + g**2
            z += g - (np.sqrt(grown) - np.sqrt(n)) / lr * self.w
            n[:] = grown
            shrunk = (np.sign(z) * l1 - z) / (np.sqrt(n) / lr + 2 * l2)
            self.w = np.where(np.abs(z) <= l1, 0.0, shrunk)
        else:
            raise NotImplementedError(type(o))
