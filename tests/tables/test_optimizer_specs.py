import math

import pytest

from embedps.errors import UsageError
from embedps.tables import SGD, Adagrad, Ftrl, LazyAdam, RowwiseAdagrad, optimizers


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Adagrad(initial_accumulator_value=-1),
            r"Adagrad.initial_accumulator_value must be in \[0, inf",
        ),
        (lambda: Adagrad(epsilon=math.nan), "Adagrad.epsilon must be in"),
        (lambda: Adagrad(epsilon=math.inf), "Adagrad.epsilon must be in"),
        (lambda: Adagrad(initial_accumulator_value=0, epsilon=0), "divide by zero"),
        (lambda: RowwiseAdagrad(epsilon=0), "divide by zero"),
        (lambda: LazyAdam(beta_1=1.0), r"LazyAdam.beta_1 must be in \[0, 1\) but got 1.0"),
        (lambda: LazyAdam(beta_2=-0.1), r"LazyAdam.beta_2 must be in \[0, 1\)"),
        (lambda: LazyAdam(epsilon=0), "divide by zero"),
        (
            lambda: Ftrl(l1_regularization_strength=-0.1),
            r"Ftrl.l1_regularization_strength must be in \[0, inf\) but got -0.1",
        ),
    ],
)
def test_optimizer_refuses_wrong_setting(make, text):
    with pytest.raises(UsageError, match=text):
        make()


def test_make_gives_each_kind_with_its_defaults():
    for kind, cls in optimizers.BY_KIND.items():
        assert optimizers.make(kind) == cls()
        assert optimizers.make(kind).kind == kind
    with pytest.raises(UsageError, match=r"must be one of sgd, .*ftrl but got 'adamw'"):
        optimizers.make("adamw")


@pytest.mark.parametrize(
    ("optimizer", "floats"),
    [(SGD(), 0), (Adagrad(), 7), (RowwiseAdagrad(), 1), (LazyAdam(), 14), (Ftrl(), 14)],
)
def test_optimizer_slot_widths_count_the_floats_of_a_row(optimizer, floats):
    assert sum(optimizer.optimizer_slot_widths(7).values()) == floats


def test_settings_name_every_number_as_checkpoints_do():
    settings = Adagrad(epsilon=0.5).settings()
    decay = {"weight_decay": 0.0, "lazy_decay": 0.0}
    assert settings == {"initial_accumulator": 0.1, "epsilon": 0.5, **decay}
    assert SGD().settings() == decay
