"""The README's programs run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

from tests.builders import write_dataset

README = Path(__file__).parent.parent / "README.md"

# As an evaluation whose labels are all the same has it, and others.
CALLS = """
from embedps.training.callbacks import RunControl
control = RunControl()
for auc in (None, 0.7, None):
    StopAtGoal().on_evaluation(control, {"auc": auc})
assert control.reason is None
StopAtGoal().on_evaluation(control, {"auc": 0.9})
assert control.reason
"""


def test_library_examples_train_and_the_last_follows(tmp_path: Path) -> None:
    callbacks, train, follow = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    dataset = write_dataset(tmp_path / "data")
    train = train.replace('"DATA"', repr(str(dataset.directory)))
    begin = train[: train.index("trainer = ")].replace('"WIDE"', repr(str(tmp_path / "other")))
    begin += "dataset = Dataset.open(config.data)\n"
    assert "'finished': True" in run(f"{begin}{callbacks}\nprint(trainer.run()){CALLS}")
    model_dir = repr(str(tmp_path / "model"))
    out = run(train.replace('"WIDE"', model_dir))
    assert "'finished': True" in out
    assert (tmp_path / "model/evaluation.jsonl").exists()  # by the evaluator beside it
    out = run(follow.replace('"MODEL"', model_dir) + "\nprint(len(rows), stored)")
    assert re.search(rf"'ids': {out.split()[0]}\b", run(train.replace('"WIDE"', model_dir)))
    assert '"number": ' in out


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
