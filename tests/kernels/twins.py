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


def rounding_key(spec: TableSpec, id_: int, step: int) -> np.uint64:
    """Returns the key of the random bits that round a row after a step."""
    row_hash = mix64(np.array([id_], np.int64).astype(np.uint64) ^ table_salt(spec.name))
    seed = mix64(np.array([spec.seed % 2**64], np.uint64))
    with np.errstate(over="ignore"):
        key: np.uint64 = mix64((seed ^ row_hash) + np.uint64(step) * _GOLDEN)[0]
    return key


def random_halves(key: np.uint64, first: int, n: int) -> np.ndarray:
    """Returns 16 random bits for each of n values, as uint32."""
    counters = np.uint32(first) + np.arange((n + 1) // 2, dtype=np.uint32)
    with np.errstate(over="ignore"):
        x: np.ndarray = np.uint32(int(key) & 0xFFFFFFFF) + counters * np.uint32(0x9E3779B9)
        x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
        x ^= np.uint32(int(key) >> 32)
        x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
        x ^= x >> 16
    return np.stack([x & 0xFFFF, x >> 16], axis=1).reshape(-1)[:n]


def round_to(dtype: str, values: np.ndarray, random: np.ndarray | None = None) -> np.ndarray:
    """Rounds finite float32 to what a dtype has: to the nearest, or by 16 random bits each."""
    if dtype == "float32":
        return values
    fraction, least, greatest = {"bfloat16": (7, -126, 127), "float16": (10, -14, 15)}[dtype]
    magnitude = np.abs(values.astype(np.float64))
    exponents = np.maximum(np.frexp(magnitude)[1] - 1, least)
    quanta = magnitude / np.ldexp(1.0, exponents - fraction)
    whole = np.rint(quanta) if random is None else np.floor(quanta + random * 2.0**-16)
    most = np.ldexp(2 - 2.0**-fraction, greatest)
    rounded = np.minimum(np.ldexp(whole, exponents - fraction), most)
    return np.copysign(rounded, values).astype(np.float32)


class StoredRow:
    """One row as memory holds it: float32 arithmetic in the kernels' order, then rounding."""

    def __init__(self, spec: TableSpec, id_: int) -> None:
        self.spec, self.id = spec, id_
        self.w = round_to(spec.row_dtype, initial_values(spec, [id_])[0])
        accumulator = np.float32(spec.optimizer.settings().get("initial_accumulator", 0.0))
        widths = spec.optimizer.optimizer_slot_widths(spec.dim)
        first = [accumulator if name == "accumulator" else np.float32(0) for name in widths]
        self.slots = [
            round_to(spec.slot_dtype, np.full(width, value, np.float32))
            for value, width in zip(first, widths.values(), strict=True)
        ]
        self.updates = 0

    def update(self, g: np.ndarray, learning_rate: float, step: int) -> None:
        f = np.float32
        o, lr, one = self.spec.optimizer, f(learning_rate), f(1)
        w, slots = self.w, self.slots
        self.updates += 1
        if o.weight_decay:
            w = w * (one - lr * f(o.weight_decay))
        if isinstance(o, SGD):
            w = w - lr * g
        elif isinstance(o, Adagrad):
            slots = [slots[0] + g * g]
            w = w - lr * g / (np.sqrt(slots[0]) + f(o.epsilon))
        elif isinstance(o, RowwiseAdagrad):
            total = np.add.accumulate(g * g, dtype=f)[-1]  # in order
            slots = [slots[0] + total / f(len(g))]
            w = w - (lr / (np.sqrt(slots[0]) + f(o.epsilon))) * g
        elif isinstance(o, LazyAdam):
            b1, b2 = f(o.beta1), f(o.beta2)
            m = b1 * slots[0] + (one - b1) * g
            v = b2 * slots[1] + (one - b2) * g * g
            c1, c2 = (f(1 / (1 - float(b) ** self.updates)) for b in (b1, b2))
            w = w - lr * (m * c1) / (np.sqrt(v * c2) + f(o.epsilon))
            slots = [m, v]
        elif isinstance(o, Ftrl):
            l1, l2 = f(o.l1), f(o.l2)
            n = slots[1] + g * g
            root = np.sqrt(n)
            z = slots[0] + (g - (root - np.sqrt(slots[1])) / lr * w)
            shrunk = (np.copysign(l1, z) - z) / (root / lr + f(2) * l2)
            w = np.where(np.abs(z) <= l1, f(0), shrunk)
            slots = [z, n]
        key = rounding_key(self.spec, self.id, step)
        self.w = round_to(self.spec.row_dtype, w, random_halves(key, 0, len(w)))
        flat = np.concatenate(slots) if slots else np.zeros(0, f)
        bits = random_halves(key, (len(w) + 1) // 2, len(flat))
        flat = round_to(self.spec.slot_dtype, flat, bits)
        self.slots = np.split(flat, np.cumsum([len(s) for s in slots])[:-1]) if slots else []
