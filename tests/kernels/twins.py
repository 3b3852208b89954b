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
        return np.full((len(ids), spec.embedding_dim), init.low, np.float32)
    seed = np.array([spec.seed % 2**64], np.uint64)
    base = mix64(mix64(seed ^ table_salt(spec.name)) ^ ids)[:, None]
    width = spec.embedding_dim + spec.embedding_dim % 2
    with np.errstate(over="ignore"):
        words = mix64(base + np.arange(width, dtype=np.uint64) * _GOLDEN)
    low, high = np.float32(init.low), np.float32(init.high)
    if init.kind == "uniform":
        u = (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return (low + (high - low) * u)[:, : spec.embedding_dim]
    bits = (words >> np.uint64(11)).astype(np.float64)
    radius = np.sqrt(-2 * np.log((bits[:, 0::2] + 1) * 2.0**-53))
    angle = 2 * np.pi * (bits[:, 1::2] * 2.0**-53)
    pairs = np.stack([np.cos(angle), np.sin(angle)], axis=-1) * radius[..., None]
    values = np.float64(low) + np.float64(high) * pairs.reshape(len(ids), width)
    return values[:, : spec.embedding_dim].astype(np.float32)


def _f(x: float) -> float:
    """Rounds a setting to float32, as the kernels do."""
    return float(np.float32(x))


def steps_passed(updates: int, last_step: int, step: int) -> int:
    """Returns how many steps an update makes up for; `updates` does not count it."""
    return max(0, step - last_step) if updates else 1


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
        self.last_step = 0

    def update(self, g: np.ndarray, learning_rate: float, step: int | None = None) -> None:
        g, lr, o = g.astype(np.float64), _f(learning_rate), self.optimizer
        step = self.last_step + 1 if step is None else step
        passed = steps_passed(self.updates, self.last_step, step)
        self.updates, self.last_step = self.updates + 1, step
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
            b1, b2, t = _f(o.beta_1), _f(o.beta_2), self.updates
            m, v = self.slots
            m[:] = b1 * m + (1 - b1) * g
            v[:] = b2 * v + (1 - b2) * g**2
            self.w -= lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + _f(o.epsilon))
        elif isinstance(o, Ftrl):
            l1, l2 = _f(o.l1_regularization_strength), _f(o.l2_regularization_strength)
            z, n = self.slots
            grown = n + g**2
            z += g - (np.sqrt(grown) - np.sqrt(n)) / lr * self.w
            n[:] = grown
            shrunk = (np.sign(z) * l1 - z) / (np.sqrt(n) / lr + 2 * l2)
            self.w = np.where(np.abs(z) <= l1, 0.0, shrunk)
        else:
            raise NotImplementedError(type(o))
        self.w /= 1 + lr * _f(o.lazy_decay) * passed


def rounding_keys(spec: TableSpec, ids, step: int) -> np.ndarray:
    """Returns the keys of the random bits that round rows after a step: uint64 [n]."""
    row_hashes = mix64(np.asarray(ids, np.int64).astype(np.uint64) ^ table_salt(spec.name))
    seed = mix64(np.array([spec.seed % 2**64], np.uint64))
    with np.errstate(over="ignore"):
        keys: np.ndarray = mix64((seed ^ row_hashes) + np.uint64(step) * _GOLDEN)
    return keys


def random_halves(keys: np.ndarray, first: int, n: int) -> np.ndarray:
    """Returns 16 random bits for each of n values of each key, as uint32 [num_keys, n]."""
    counters = np.uint32(first) + np.arange((n + 1) // 2, dtype=np.uint32)
    low = (keys & np.uint64(0xFFFFFFFF)).astype(np.uint32)[:, None]
    high = (keys >> np.uint64(32)).astype(np.uint32)[:, None]
    with np.errstate(over="ignore"):
        x: np.ndarray = low + counters * np.uint32(0x9E3779B9)
        x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
        x ^= high
        x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
        x ^= x >> 16
    return np.stack([x & 0xFFFF, x >> 16], axis=2).reshape(len(keys), -1)[:, :n]


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


def first_slots(spec: TableSpec) -> np.ndarray:
    """Returns the optimizer slots of a new row, one after the other: float32 [slot_floats]."""
    accumulator = np.float32(spec.optimizer.settings().get("initial_accumulator", 0.0))
    widths = spec.optimizer.optimizer_slot_widths(spec.embedding_dim)
    first = [np.full(n, accumulator if s == "accumulator" else 0) for s, n in widths.items()]
    return round_to(spec.slot_dtype, np.concatenate([*first, np.zeros(0)]).astype(np.float32))


def update_stored(
    spec: TableSpec,
    ids,
    w: np.ndarray,
    slots: np.ndarray,
    updates: np.ndarray,
    passed: np.ndarray,
    g: np.ndarray,
    learning_rate: float,
    step: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Updates rows as memory holds them: float32 in the kernels' order, then rounding at random.

    Args:
      spec: the table.
      ids: [n].
      w: embeddings, float32 [n, dim].
      slots: optimizer slots, float32 [n, slot_floats].
      updates: of each row with this one, int [n].
      passed: as `steps_passed` gives them, int [n].
      g: gradients, float32 [n, dim].
      learning_rate: of the step.
      step: its number.

    Returns:
      Embeddings and optimizer slots.
    """
    f = np.float32
    o, lr, one, dim = spec.optimizer, f(learning_rate), f(1), spec.embedding_dim
    if o.weight_decay:
        w = w * (one - lr * f(o.weight_decay))
    if isinstance(o, SGD):
        w = w - lr * g
    elif isinstance(o, Adagrad):
        slots = slots + g * g
        w = w - lr * g / (np.sqrt(slots) + f(o.epsilon))
    elif isinstance(o, RowwiseAdagrad):
        total = np.add.accumulate(g * g, axis=1, dtype=f)[:, -1:]  # in order
        slots = slots + total / f(dim)
        w = w - (lr / (np.sqrt(slots) + f(o.epsilon))) * g
    elif isinstance(o, LazyAdam):
        b1, b2 = f(o.beta_1), f(o.beta_2)
        m = b1 * slots[:, :dim] + (one - b1) * g
        v = b2 * slots[:, dim:] + (one - b2) * g * g
        c1, c2 = (np.array([[1 / (1 - float(b) ** int(t))] for t in updates], f) for b in (b1, b2))
        w = w - lr * (m * c1) / (np.sqrt(v * c2) + f(o.epsilon))
        slots = np.concatenate([m, v], axis=1)
    elif isinstance(o, Ftrl):
        l1, l2 = f(o.l1_regularization_strength), f(o.l2_regularization_strength)
        n = slots[:, dim:] + g * g
        root = np.sqrt(n)
        z = slots[:, :dim] + (g - (root - np.sqrt(slots[:, dim:])) / lr * w)
        shrunk = (np.copysign(l1, z) - z) / (root / lr + f(2) * l2)
        w = np.where(np.abs(z) <= l1, f(0), shrunk)
        slots = np.concatenate([z, n], axis=1)
    if o.lazy_decay:
        rate = lr * f(o.lazy_decay) * passed.astype(f)[:, None]
        w = w * (one / (one + rate))
    if (spec.row_dtype, spec.slot_dtype) == ("float32", "float32"):
        return w, slots
    keys = rounding_keys(spec, ids, step)
    bits = random_halves(keys, (dim + 1) // 2, slots.shape[1])
    return (
        round_to(spec.row_dtype, w, random_halves(keys, 0, dim)),
        round_to(spec.slot_dtype, slots, bits),
    )


class StoredRow:
    """One row as memory holds it."""

    def __init__(self, spec: TableSpec, id_: int) -> None:
        self.spec, self.id = spec, id_
        self.w = round_to(spec.row_dtype, initial_values(spec, [id_])[0])
        self._slots = first_slots(spec)
        self.updates = self._last_step = 0

    @property
    def slots(self) -> list[np.ndarray]:
        """Each optimizer slot."""
        widths = self.spec.optimizer.optimizer_slot_widths(self.spec.embedding_dim).values()
        return np.split(self._slots, np.cumsum(list(widths))[:-1]) if widths else []

    def update(self, g: np.ndarray, learning_rate: float, step: int) -> None:
        passed = steps_passed(self.updates, self._last_step, step)
        self.updates, self._last_step = self.updates + 1, step
        w, slots = update_stored(
            self.spec,
            [self.id],
            self.w[None],
            self._slots[None],
            np.array([self.updates]),
            np.array([passed]),
            g[None],
            learning_rate,
            step,
        )
        self.w, self._slots = w[0], slots[0]
