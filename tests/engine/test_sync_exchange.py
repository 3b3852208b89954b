"""Workers take steps together: their sums are NumPy's, whatever is repeated or killed."""

import pytest

from embedps.errors import UsageError
from tests.builders import make_dlrm, write_dataset
from tests.commands import run_program
from tests.engine.builders import Trained


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("num_ps", [1, 2])
def test_servers_add_up_the_parts_of_a_step_in_order_of_rank(num_ps, tmp_path):
    run_program("-m", "tests.engine.sync_program", tmp_path, str(num_ps))


@pytest.mark.parametrize(
    ("overlap", "message"),
    [
        (True, "--sync full begins a step once the one before it is applied, --overlap before"),
        (False, "--sync full needs parameter servers, which add up"),
    ],
)
def test_what_cannot_wait_is_refused(overlap, message, tmp_path):
    dataset = write_dataset(tmp_path / "data", train=(60,), evaluation=(10,))
    model = Trained(make_dlrm(dataset), dataset)
    with pytest.raises(UsageError, match=message):
        model.make_unit(overlap=overlap, sync="full")
