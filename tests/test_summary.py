"""What summary.json has of a run."""

from embedps.runs import Run
from embedps.summary import SUMMARY_NAME, read_json
from embedps.train import _finish
from tests.builders import TINY_DLRM, make_config, make_trainer, write_dataset


def test_summary_keeps_what_the_run_measured_that_had_something_to_do(tmp_path):
    dataset = write_dataset(tmp_path / "data")
    run = Run(config=make_config(dataset, tmp_path / "m"), model_config=TINY_DLRM)
    _finish(run, tmp_path / "m", make_trainer(dataset, tmp_path / "m").run())
    first = read_json(tmp_path / "m" / SUMMARY_NAME)
    nothing = make_trainer(dataset, tmp_path / "m").run()
    # On a terminal, the bar alone takes some time.
    _finish(run, tmp_path / "m", {**nothing, "wall_secs": nothing["wall_secs"] + 0.01})
    again = read_json(tmp_path / "m" / SUMMARY_NAME)
    assert first["training"]["auc"] is not None
    for measured in ("wall_secs", "examples_per_sec", "training", "checkpoint"):
        assert again[measured] == first[measured], measured
