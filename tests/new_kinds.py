"""A new kind of each sort, as edits of the tree: what CONTRIBUTING.md says that it takes.

The optimizer is Signum (Bernstein et al. 2018), the combiner divides by the fourth root of n, the
admission takes a share of all ids, the eviction removes rows of few updates, the transform is a
square root, and the model adds up rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

Edits = Mapping[str, Sequence[tuple[str, str]]]
"""By file, the texts to replace, each of which it has once; of a new file, an empty one."""

_PUBLIC_NAMES = "embedps/__init__.pyi"
_OPTIONS = "embedps/tables/table_options.py"


def _public(name: str, module: str) -> list[tuple[str, str]]:
    """Makes a name of a module in tables/ public."""
    anchor = "from .tables.specs import FeatureSpec as FeatureSpec\n"
    return [(anchor, f"from .tables.{module} import {name} as {name}\n{anchor}")]


OPTIMIZER: Edits = {
    "embedps/kernels/store/optimizers.h": [
        ("kLazyAdam, kFtrl };", "kLazyAdam, kFtrl, kSignum };"),
        ('"ftrl"};', '"ftrl", "signum"};'),
        (
            "  float l1 = 0;  // FTRL\n",
            "  float momentum = 0;  // Signum\n  float l1 = 0;  // FTRL\n",
        ),
    ],
    "embedps/kernels/store/optimizers.cc": [
        (
            "EMBEDPS_SIMD void Scale(",
            """\
EMBEDPS_SIMD void Signum(int dim, float lr, float momentum, const float* __restrict g,
                         float* __restrict w, float* __restrict m) {
  for (int i = 0; i < dim; ++i) {
    m[i] = momentum * m[i] + (1 - momentum) * g[i];
    w[i] -= lr * static_cast<float>((m[i] > 0) - (m[i] < 0));
  }
}

EMBEDPS_SIMD void Scale(""",
        ),
        (
            '      return {{{"linear", dim}, 0}, {{"accumulator", dim}, '
            "config.initial_accumulator}};\n",
            """\
      return {{{"linear", dim}, 0}, {{"accumulator", dim}, config.initial_accumulator}};
    case OptimizerKind::kSignum:
      return {{{"momentum", dim}, 0}};
""",
        ),
        (
            '  settings->Number("l1", 0',
            '  settings->Number("momentum", 0, 1, &momentum);\n  settings->Number("l1", 0',
        ),
        (
            "    case OptimizerKind::kFtrl:\n      return Ftrl(",
            """\
    case OptimizerKind::kSignum:
      return Signum(dim, learning_rate, config.momentum, gradient, embedding, optimizer_slots);
    case OptimizerKind::kFtrl:
      return Ftrl(""",
        ),
    ],
    "embedps/tables/optimizers.py": [
        ('"Optimizer", "RowwiseAdagrad"]', '"Optimizer", "RowwiseAdagrad", "Signum"]'),
        (
            "BY_KIND: dict",
            '''\
@dataclasses.dataclass(frozen=True, kw_only=True)
class Signum(Optimizer):
    """Steps by the sign of a moving average of the gradients."""

    kind: ClassVar[str] = "signum"
    moves_by_zero: ClassVar[bool] = True
    momentum: float = 0.9

    def optimizer_slot_widths(self, dim: int) -> dict[str, int]:
        return {"momentum": dim}


BY_KIND: dict''',
        ),
    ],
    _PUBLIC_NAMES: _public("Signum", "optimizers"),
}

COMBINER: Edits = {
    "embedps/kernels/lookup/combiner.h": [
        ("kSqrtn, kNone };", "kSqrtn, kNone, kFourthRoot };"),
        ('"none"};', '"none", "fourth_root"};'),
    ],
    "embedps/kernels/lookup/combiner.cc": [
        (
            "    case Combiner::kMean:\n",
            """\
    case Combiner::kFourthRoot:
      return 1 / std::sqrt(std::sqrt(static_cast<float>(n)));
    case Combiner::kMean:
""",
        )
    ],
    "embedps/tables/specs.py": [('"sqrtn", "none"]', '"sqrtn", "none", "fourth_root"]')],
    "embedps/serving/stock_lookup.py": [
        (
            '    "sqrtn": tf.sqrt,\n',
            '    "sqrtn": tf.sqrt,\n    "fourth_root": lambda count: tf.sqrt(tf.sqrt(count)),\n',
        )
    ],
}

ADMISSION: Edits = {
    "embedps/kernels/store/admission.h": [
        ('"chance"};', '"chance", "share"};'),
        ("kMinCount, kChance };", "kMinCount, kChance, kShare };"),
        (
            "    threshold = static_cast",
            """\
    settings->Number("admission.share", 0, 1, &probability);
    threshold = static_cast""",
        ),
        (
            "    case AdmissionConfig::Kind::kAlways:\n",
            """\
    case AdmissionConfig::Kind::kShare:
      return Mix64(static_cast<uint64_t>(id) ^ table_salt) >> 32 < config.threshold;
    case AdmissionConfig::Kind::kAlways:
""",
        ),
    ],
    "embedps/tables/admission.py": [
        ('"MinCount"]', '"MinCount", "Share"]'),
        (
            "BY_KIND: dict",
            '''\
@dataclasses.dataclass(frozen=True, kw_only=True)
class Share(Admission):
    """Admits a share of all ids, chosen by their hashes."""

    kind: ClassVar[str] = "share"
    share: float


BY_KIND: dict''',
        ),
    ],
    _PUBLIC_NAMES: _public("Share", "admission"),
    _OPTIONS: [
        ("import Admission, Chance, MinCount", "import Admission, Chance, MinCount, Share"),
        (
            "    def admission(self) -> Admission | None:\n",
            """\
    admit_share: float = option(1.0, "this share of all ids gets rows", least=2**-32, most=1)

    def admission(self) -> Admission | None:
""",
        ),
        (
            "        if self.min_count_expire_steps:\n",
            """\
        if self.admit_share < 1:
            return Share(share=self.admit_share)
        if self.min_count_expire_steps:
""",
        ),
    ],
}

EVICTION: Edits = {
    "embedps/kernels/store/eviction.h": [
        ("kHand, kNone };", "kHand, kRare, kNone };"),
        ('"hand"};', '"hand", "rare"};'),
        (
            "  float min_norm = 0;",
            """\
  uint32_t min_updates = 0;      // a row goes if it has fewer
  float min_norm = 0;""",
        ),
        (
            '    settings->Number("MinNorm.norm"',
            """\
    settings->Number("MinUpdates.updates", 0, UINT32_MAX, &min_updates);
    settings->Number("MinNorm.norm\"""",
        ),
        ("has_oldest_step || min_norm > 0; }", "has_oldest_step || min_norm > 0 || min_updates; }"),
        (
            "           (min_norm > 0 && steps",
            """\
           (min_updates > 0 && steps >= kNormSweepSteps) ||
           (min_norm > 0 && steps""",
        ),
        (
            "    if (min_norm > 0 && row.frequency",
            """\
    if (row.frequency < min_updates) return EvictionCause::kRare;
    if (min_norm > 0 && row.frequency""",
        ),
    ],
    "embedps/tables/eviction.py": [
        ('__all__ = ["MinNorm"', '__all__ = ["MinNorm", "MinUpdates"'),
        (
            "BY_NAME: dict",
            '''\
@dataclasses.dataclass(frozen=True, kw_only=True)
class MinUpdates(EvictionPolicy):
    """A row goes if it was updated less often when a sweep comes, every 256 steps."""

    updates: int


BY_NAME: dict''',
        ),
    ],
    _PUBLIC_NAMES: _public("MinUpdates", "eviction"),
    _OPTIONS: [
        (
            "from embedps.tables.eviction import EvictionPolicy, MinNorm",
            "from embedps.tables.eviction import EvictionPolicy, MinNorm, MinUpdates",
        ),
        (
            "    def eviction(self) -> tuple[EvictionPolicy, ...]:\n",
            """\
    min_updates: int = option(0, "a row of fewer updates goes at a sweep", least=0, most=MAX_INT64)

    def eviction(self) -> tuple[EvictionPolicy, ...]:
""",
        ),
        (
            "        if self.min_row_norm:\n",
            """\
        if self.min_updates:
            policies.append(MinUpdates(updates=self.min_updates))
        if self.min_row_norm:
""",
        ),
    ],
}

MODEL: Edits = {
    "models/row_sums.py": [
        (
            "",
            '''\
"""The sum of an example's rows: the smallest model."""

import dataclasses
from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables.table_options import TableOptions

from ._columns import click_recommender, declare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TableOptions):
    """The model's options."""


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes the model over a dataset's columns."""
    features = declare(config, dataset.categorical)

    def build() -> Any:
        from embedps.layers.embeddings import Embeddings

        from .networks.row_sums import RowSums

        return RowSums(Embeddings(features), label=dataset.label)

    return click_recommender("row_sums", config, dataset, build)
''',
        )
    ],
    "models/networks/row_sums.py": [
        (
            "",
            '''\
"""The network of models/row_sums.py."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedps.engine.click_model import ClickModel
from embedps.layers.embeddings import Embeddings


class RowSums(ClickModel):
    """Predicts a click from the sum of all floats of an example's rows."""

    def __init__(self, embeddings: Embeddings, *, label: str) -> None:
        """Takes the layer that looks up the rows, and the label's column."""
        super().__init__(label=label)
        self.embeddings = embeddings
        self.bias = self.add_weight(name="bias", shape=[1], initializer="zeros")

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        rows = tf.concat(list(self.embeddings(features).values()), axis=1)
        return tf.reduce_sum(rows, axis=1) + self.bias
''',
        )
    ],
}

TRANSFORM: Edits = {
    "embedps/features/transform_steps.py": [
        (
            "def parse_step(",
            '''\
@dataclass(frozen=True, kw_only=True)
class Sqrt(TransformStep):
    """Computes the square root of max(x, 0)."""

    op: ClassVar[str] = "sqrt"
    takes: ClassVar[Kind] = "numbers"
    gives: ClassVar[Kind] = "numbers"

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.sqrt(np.maximum(values, 0.0))


def parse_step(''',
        ),
        (
            '    if op == "log1p" and value is True:\n',
            """\
    if op == "sqrt" and value is True:
        return Sqrt()
    if op == "log1p" and value is True:
""",
        ),
        ('"a step must be log1p,', '"a step must be sqrt, log1p,'),
    ],
    "embedps/serving/stock_transforms.py": [
        ("    Log1p,\n", "    Log1p,\n    Sqrt,\n"),
        (
            "        case Log1p():\n",
            """\
        case Sqrt():
            return tf.sqrt(tf.maximum(x, 0))
        case Log1p():
""",
        ),
    ],
}

KINDS = {
    "optimizer": OPTIMIZER,
    "combiner": COMBINER,
    "admission": ADMISSION,
    "eviction": EVICTION,
    "transform": TRANSFORM,
    "model": MODEL,
}


def apply(edits: Edits, root: Path) -> None:
    """Edits a tree."""
    for name, replacements in edits.items():
        path = root / name
        for before, after in replacements:
            text = path.read_text() if before else ""
            count = text.count(before) if before else 1
            assert count == 1, f"{name} must have once, but has {count} times: {before!r}"
            path.write_text(text.replace(before, after) if before else after)
