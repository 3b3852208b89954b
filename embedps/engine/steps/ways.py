"""The ways in which steps are taken: what each needs, refuses, schedules and promises.

What does not go with a way is said here and nowhere else. TensorFlow is not needed, so that flags
are refused at once. docs/guides/strategies.md shows the table to users.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from embedps.errors import UsageError

SyncMode: TypeAlias = Literal["none", "dense", "full"]
"""What the workers of a step update together: nothing, the network, or the network and the rows."""

OnLostWorker: TypeAlias = Literal["repeat", "continue"]
"""What a step does whose worker is lost: it is repeated, or goes on with the others."""

Place: TypeAlias = Literal["process", "servers", "workers"]
"""Where tables and variables are: in this process, on parameter servers, or on the workers."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Options that do not go with a way.

    Attributes:
      options: names of fields; refused if a run asks for all of them.
      why: the message. It may name the values of what a run asks for: {backup_workers}.
    """

    options: tuple[str, ...]
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """A way in which steps are taken.

    Attributes:
      name: for people.
      flags: which choose it, as docs/guides/strategies.md has them.
      place: where tables and variables must be.
      needs: the message if they are elsewhere.
      sync: what workers update together.
      refuses: what does not go with it.
      schedules: "units" of one worker each, or in "gangs" of workers that take steps together.
      fresh_network: a step computes with the network of all steps before it.
      fresh_rows: the same of the rows.
      same_bits: runs have those of as many `--replicas` in one process, if no worker is lost.
      waits: for the batches of all workers.
    """

    name: str
    flags: str
    place: Place
    needs: str = ""
    sync: SyncMode = "none"
    refuses: tuple[Refusal, ...] = ()
    schedules: Literal["units", "gangs"] = "units"
    fresh_network: bool = False
    fresh_rows: bool = False
    same_bits: bool = False
    waits: bool = False

    def check(self, asked: Mapping[str, Any], place: Place | None = None) -> None:
        """Checks what a run asks for.

        Args:
          asked: what differs from its default, by name of field.
          place: where tables and variables will be; None if that is not known yet.

        Raises:
          UsageError: it does not go with this way.
        """
        values = {"sync": self.sync, **asked}
        for refusal in self.refuses:
            if all(option in asked for option in refusal.options):
                raise UsageError(refusal.why.format(**values))
        if place not in (None, self.place):
            raise UsageError(self.needs.format(**values))


_NO_DEVICES = Refusal(
    ("mirrored",), "--mirrored needs the number of devices: give --replicas 2 or more"
)
_WAITS_FOR_NOBODY = Refusal(
    ("on_lost_worker",),
    "--on-lost-worker continue says what workers in step do, and --sync none waits for nobody: "
    "give --sync full or dense, or leave it out",
)
_WAITS_FOR_ALL = Refusal(
    ("backup_workers",),
    "--backup-workers {backup_workers} lets steps go on without some workers, and --on-lost-worker "
    "repeat waits for all: give --on-lost-worker continue",
)
_OWN_STEPS_MEET = Refusal(
    ("overlap", "max_staleness_steps"),
    "--overlap makes a worker's own steps meet, which --max-staleness-steps does not count: leave "
    "one of them out",
)
_NEEDS_SERVERS = (
    "--sync {sync} needs parameter servers, which add up what the workers send, but this run has "
    "none: give --num-ps, or use --replicas, which takes such steps in one process, without --sync"
)
_NO_GROUPS = Refusal(
    ("sync_group_size",),
    "--sync-group-size says how many workers take a step together, and with --sync none each takes "
    "its own: give --sync full or dense, or leave it out",
)
_ALONE = (_NO_DEVICES, _WAITS_FOR_NOBODY, _WAITS_FOR_ALL, _OWN_STEPS_MEET, _NO_GROUPS)
_ONE_PROCESS_ONLY = (
    "--replicas divides the steps of one process: leave out --num-ps and --num-workers"
)

ONE_PROCESS = Way(
    name="one process",
    flags="none",
    place="process",
    refuses=_ALONE,
    fresh_network=True,
    fresh_rows=True,
    same_bits=True,
)
REPLICAS = dataclasses.replace(
    ONE_PROCESS,
    name="replicas",
    flags="`--replicas N`, `--mirrored`",
    needs="--replicas divides the steps of one process, not those of a cluster: leave it out",
    refuses=(
        Refusal(("num_ps",), _ONE_PROCESS_ONLY),
        Refusal(("num_workers",), _ONE_PROCESS_ONLY),
        Refusal(("sync",), _NEEDS_SERVERS),
        *_ALONE[1:],
    ),
)
ASYNCHRONOUS = Way(
    name="asynchronous",
    flags="`--num-ps P --num-workers N`",
    place="servers",
    refuses=_ALONE,
)
_TOGETHER = (
    Refusal(
        ("overlap",),
        "--sync {sync} begins a step once the one before it is applied, --overlap before that: "
        "leave one of them out",
    ),
    Refusal(
        ("max_staleness_steps",),
        "--sync {sync} trains steps of all workers together, and --max-staleness-steps bounds "
        "steps of single workers: leave one of them out",
    ),
    Refusal(
        ("min_workers",),
        "--sync {sync} trains steps of all workers together, and --min-workers begins without "
        "some: leave one of them out",
    ),
    _NO_DEVICES,
)
HYBRID = Way(
    name="hybrid",
    flags="the same with `--sync dense`",
    place="servers",
    needs=_NEEDS_SERVERS,
    sync="dense",
    refuses=(*_TOGETHER, _WAITS_FOR_ALL),
    schedules="gangs",
    fresh_network=True,
    waits=True,
)
IN_STEP = dataclasses.replace(
    HYBRID,
    name="in step",
    flags="the same with `--sync full`",
    sync="full",
    fresh_rows=True,
    same_bits=True,
)
# These are not `IN_STEP` with another option: only that one promises bits.
HYBRID_BY_GROUP = Way(
    name="hybrid, by group",
    flags="the same with `--sync dense --sync-group-size k`",
    place="servers",
    needs=_NEEDS_SERVERS,
    sync="dense",
    refuses=HYBRID.refuses,
    schedules="gangs",
)
IN_STEP_BY_GROUP = dataclasses.replace(
    HYBRID_BY_GROUP,
    name="in step, by group",
    flags="the same with `--sync full --sync-group-size k`",
    sync="full",
)
IN_GROUPS = Way(
    name="in step, with backup workers",
    flags="`--sync full --on-lost-worker continue --backup-workers b`",
    place="servers",
    needs=_NEEDS_SERVERS,
    sync="full",
    refuses=(
        *_TOGETHER,
        Refusal(
            ("sync_group_size",),
            "--sync-group-size makes workers wait for those of their group, and --on-lost-worker "
            "continue for nobody who is lost: give --backup-workers, or --on-lost-worker repeat",
        ),
    ),
)
HYBRID_GROUPS = dataclasses.replace(
    IN_GROUPS,
    name="hybrid, with backup workers",
    flags="`--sync dense --on-lost-worker continue --backup-workers b`",
    sync="dense",
)
COLLECTIVES = Way(
    name="collectives",
    flags="`TF_CONFIG` with workers only",
    place="workers",
    refuses=(
        *(
            Refusal(
                (option,),
                f"--{option.replace('_', '-')} must be left out where TF_CONFIG has workers only: "
                "they train in step",
            )
            for option in (
                "num_ps",
                "num_workers",
                "num_shards",
                "replicas",
                "sync",
                "sync_group_size",
                "on_lost_worker",
                "min_workers",
                "overlap",
                "max_staleness_steps",
                "watch",
                "max_server_bytes",
                "max_memory_bytes",
                "evicted_rows",
                "rates_batch_size",
            )
        ),
        Refusal(
            ("ranks_inline",),
            "--eval inline must be left out for a model that ranks candidates where TF_CONFIG has "
            "workers only: start `embedps evaluate` beside the run",
        ),
    ),
    fresh_network=True,
    fresh_rows=True,
    same_bits=True,
    waits=True,
)
WAYS = (
    ONE_PROCESS,
    REPLICAS,
    ASYNCHRONOUS,
    HYBRID,
    IN_STEP,
    HYBRID_BY_GROUP,
    IN_STEP_BY_GROUP,
    HYBRID_GROUPS,
    IN_GROUPS,
    COLLECTIVES,
)


def way_of(
    *,
    place: Place,
    replicas: int = 1,
    sync: SyncMode = "none",
    in_groups: bool = False,
    by_group: bool = False,
) -> Way:
    """Gives the way that options choose.

    Args:
      place: where tables and variables are, as far as is known.
      replicas: batches per step of one process.
      sync: what workers update together.
      in_groups: steps go on without workers that are lost or slow.
      by_group: a step is of some of the workers.
    """
    if place == "workers":
        return COLLECTIVES
    if replicas > 1:
        return REPLICAS
    if sync == "none":
        return ASYNCHRONOUS if place == "servers" else ONE_PROCESS
    if in_groups:
        return HYBRID_GROUPS if sync == "dense" else IN_GROUPS
    if by_group:
        return HYBRID_BY_GROUP if sync == "dense" else IN_STEP_BY_GROUP
    return HYBRID if sync == "dense" else IN_STEP
