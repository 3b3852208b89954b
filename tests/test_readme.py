"""The README's program runs as it is printed."""

import re
import subprocess
import sys
from pathlib import Path

from tests.builders import write_dataset

README = Path(__file__).parent.parent / "README.md"


def test_library_example_trains(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    dataset = write_dataset(tmp_path / "data")
    program = program.replace('"DATA"', repr(str(dataset.directory)))
    program = program.replace('"WIDE"', repr(str(tmp_path / "model")))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "'finished': True" in done.stdout
