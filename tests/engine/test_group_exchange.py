"""Steps that do not wait for slow or lost workers: NumPy's sums, and nobody is waited for."""

import pytest

from tests.commands import run_program


@pytest.mark.multiprocess
@pytest.mark.slow
def test_steps_go_on_without_workers_that_are_late_or_lost(tmp_path):
    run_program("-m", "tests.engine.group_program", tmp_path)
