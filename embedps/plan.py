"""Plans a run: `embedps plan --data DIR --model dlrm`, with the flags of `embedps train`.

It prints what the run will need: rows and bytes of each table, memory of the parameter servers,
bytes on the wire per step, and the speed of 1 to 64 workers.

Rows are counted in the training split. Bytes of tables are measured on a store that is filled here.
Bytes on the wire come from the distinct ids of real batches. Speeds come from some seconds of
training here: in this process, and with --num-ps servers and --num-workers workers, or one of each.
Figures of other numbers of servers and workers are predictions. The model directory is not touched.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from embedps.console import command_line
from embedps.console.lines import say
from embedps.data.dataset import Dataset
from embedps.run.run_flags import RunFlags


def main(arguments: Sequence[str], prog: str = "python -m embedps.plan") -> int:
    """Prints a plan; returns the exit code."""
    # Imported late, as TensorFlow is: --help does not wait for it.
    flags = RunFlags(
        arguments, prog, __doc__ or "", defaults={"model_dir": "."}, without="monitoring"
    )
    from embedps.planning.plan_config import PlanConfig

    flags.add(PlanConfig, "plan")
    run = flags.read()
    asked = flags.make(PlanConfig)
    dataset = Dataset.open(run.data)
    recommender = run.recommender(dataset)
    from embedps.console.tables import make_console
    from embedps.planning.plan import make_plan
    from embedps.planning.plan_tables import print_plan

    plan = make_plan(recommender, dataset, run.config, asked)
    print_plan(plan, asked, make_console())
    if asked.json is not None:
        asked.json.write_text(json.dumps(dataclasses.asdict(plan), indent=1) + "\n")
        say(f"wrote {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
