"""Workers take steps together: their sums are NumPy's, whatever is repeated or killed."""

import pytest
import tensorflow as tf

from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import make_train_unit
from embedps.errors import UsageError
from tests import forked
from tests.builders import ROOT, make_dlrm, write_dataset
from tests.tables.builders import make_collection


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("num_ps", [1, 2])
def test_servers_add_up_the_parts_of_a_step_in_order_of_rank(num_ps, tmp_path):
    done = forked.run(
        ["-m", "tests.engine.sync_program", str(tmp_path), str(num_ps)],
        cwd=ROOT,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("overlap", "message"),
    [
        (True, "--sync full begins a step once the one before it is applied, --overlap before"),
        (False, "--sync full needs parameter servers, which add up"),
    ],
)
def test_what_cannot_wait_is_refused(overlap, message, tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(60,), evaluation=(10,))
    step = StepModel(make_dlrm(dataset), dataset)
    optimizer = make_dense_optimizer("sgd", 0.1, step.model)
    with pytest.raises(UsageError, match=message):
        make_train_unit(
            step,
            optimizer,
            make_collection(list(step.tables), list(step.features)),
            tf.distribute.get_strategy(),
            step.input(batch_rows=6, shuffle_rows=0),
            overlap=overlap,
            sync="full",
        )
