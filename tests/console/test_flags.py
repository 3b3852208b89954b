"""Configs from defaults, a TOML file and flags: each default told once."""

import dataclasses
import json
from pathlib import Path

import pytest

from embedps.config_fields import check, choices_of, option, options_of, values_of, without_none
from embedps.console import flags
from embedps.console.command_line import Parser
from embedps.errors import UsageError
from embedps.run.config import TrainConfig
from embedps.server import ServerConfig

SEVERAL = {"table_optimizer": "item:learning_rate=2"}
BELOW_1 = ("inner_share", "reduce_factor", "tolerance", "warmup")
REQUIRED = ["--data=d", "--model-dir=m"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Other:
    """A config of every type."""

    name: str = dataclasses.field(metadata={"help": "100% needed"})
    rate: float = 0.5
    layers: tuple[int, ...] = dataclasses.field(default=(8, 4), metadata={"help": "widths"})
    limit: int | None = None
    fast: bool = False
    kind: str = dataclasses.field(default="a", metadata={"choices": ("a", "b")})


def parser_of(*configs):
    parser = Parser(prog="prog")
    for config in configs:
        flags.add_flags(parser, config, config.__name__)
    return parser


def parse(config, arguments, file=None):
    return flags.make(config, parser_of(config).parse_args(arguments), file or {})


def write(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return str(path)


def test_default_is_the_fields():
    assert parse(TrainConfig, REQUIRED) == TrainConfig.from_options(data="d", model_dir="m")
    assert parse(Other, ["--name=x"]) == Other(name="x")


@pytest.mark.parametrize("option", options_of(TrainConfig), ids=lambda o: o.name)
def test_every_option_is_a_flag_and_a_key_and_a_key_of_its_groups_table(option, tmp_path):
    metadata = option.field.metadata
    choices = choices_of(option.hint, metadata)
    values = {
        str: "sgd",
        int: min(70_000, metadata.get("most", 70_000)),
        float: 1.25,
        bool: False,
        tuple[str, ...]: (SEVERAL.get(option.name, "old=new"),),
    }
    kind = without_none(option.hint)
    value = choices[-1] if choices else 0.5 if option.name in BELOW_1 else values[kind]
    flag = flags.flag_name(option.name)
    if kind is bool:
        given = [flag.replace("--", "--no-")]
    else:
        given = [f"{flag}={value[0] if isinstance(value, tuple) else value}"]
    needed = {
        "batch_size": ["--unit-rows=80000"],
        "replicas": ["--unit-rows=600000"],
        "eval_units": ["--eval=inline"],
        "eval_epochs": ["--eval=inline"],
        "inner_share": ["--eval=inline"],
        "inner_fold": ["--eval=inline", "--inner-share=1e-5"],
        "sync_group_size": ["--sync=full"],
        "on_lost_worker": ["--sync=full"],
        "backup_workers": ["--sync=full", "--on-lost-worker=continue"],
        "from_map": ["--from=model"],
        "max_memory_bytes": ["--spill-dir=spill"],
        "spill_dir": ["--max-memory-bytes=1"],
        "min_delta": ["--stop-patience=1"],
        "tolerance": ["--stop-patience=1"],
    }
    companions = needed.get(option.name, [])
    rest = [r for r in REQUIRED if not r.startswith(f"{flag}=")]
    expected = parse(TrainConfig, [*rest, *companions, *given])
    assert values_of(expected)[option.name] == value
    holder = expected if option.section is None else getattr(expected, option.section)
    assert getattr(holder, option.field.name) == value
    literal = json.dumps(value)
    texts = [f"{option.name} = {literal}"]
    if option.section is not None:
        texts.append(f"[{option.section}]\n{option.field.name} = {literal}")
    for text in texts:
        file = flags.read_file(write(tmp_path, text), TrainConfig)
        assert parse(TrainConfig, [*rest, *companions], file) == expected


def test_option_both_as_a_key_and_in_its_groups_table_is_refused(tmp_path):
    path = write(tmp_path, "num_ps = 2\n[cluster]\nnum_ps = 2\n")
    with pytest.raises(UsageError, match="has num_ps twice, once in a table: remove one"):
        flags.read_file(path, TrainConfig)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[cluster]\nnum_pss = 2\n", "cluster.num_pss"),
        ("[checkpoint]\ncheckpoint_row_encoding = 'int8'\n", "checkpoint.checkpoint_row_encoding"),
        ("[training]\nepochs = 2\n", "training"),
        ("cluster = 2\n", "cluster"),
    ],
)
def test_key_of_a_table_that_is_no_option_is_refused(tmp_path, text, key):
    with pytest.raises(UsageError, match=rf"has keys \['{key}'\]; it may have .*'cluster.num_ps'"):
        flags.read_file(write(tmp_path, text), TrainConfig)


def test_flag_goes_before_file_and_file_before_default(tmp_path):
    file = flags.read_file(
        write(tmp_path, 'name = "file"\nrate = 2\nlayers = [1, 2, 3]\nfast = true\n'), Other
    )
    assert parse(Other, ["--rate=3.5", "--no-fast"], file) == Other(
        name="file", rate=3.5, layers=(1, 2, 3), fast=False
    )


def test_tuples_optionals_and_booleans_are_read_from_flags():
    given = parse(Other, ["--name=x", "--layers=7,9", "--limit=3", "--fast", "--kind=b"])
    assert given == Other(name="x", layers=(7, 9), limit=3, fast=True, kind="b")


def test_help_shows_defaults_and_exits_with_zero(capsys):
    with pytest.raises(SystemExit) as exited:
        parser_of(TrainConfig, Other).parse_args(["--help"])
    assert exited.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for each in options_of(TrainConfig):
        assert flags.flag_name(each.name) in text
        if each.default not in (dataclasses.MISSING, None, ()):
            assert f"(default: {each.default})" in text
    assert "package.module (default: dlrm)" in text
    assert "100% needed (required)" in text
    assert "widths (default: 8,4)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nme=x"], "required|unrecognized"),
        (["--name=x", "--bogus"], "prog: unrecognized arguments: --bogus"),
        (["--name=x", "--lim=3"], "unrecognized arguments: --lim=3"),
        (["--name=x", "--rate=fast"], "--rate: invalid float value: 'fast'"),
        (["--name=x", "--limit=1.5"], "--limit: invalid int value: '1.5'"),
        (["--name=x", "--layers=1,b"], "--layers: invalid .* value: '1,b'"),
        (["--name=x", "--kind=c"], "--kind: invalid choice: 'c'"),
        (["--name"], "--name: expected one argument"),
        ([], "--name is required"),
    ],
)
def test_bad_flag_is_a_usage_error(arguments, message):
    with pytest.raises(UsageError, match=message):
        parse(Other, arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 3", "name in the config file must be str but got 3"),
        ('name = "x"\nrate = "high"', "rate in the config file must be float but got 'high'"),
        ('name = "x"\nlimit = true', "limit in the config file must be int but got True"),
        ('name = "x"\nlimit = 1.5', "limit in the config file must be int but got 1.5"),
        ('name = "x"\nfast = 1', "fast in the config file must be bool but got 1"),
        ('name = "x"\nlayers = 8', "layers in the config file must be tuple but got 8"),
        ('name = "x"\nlayers = [8, "b"]', "layers in the config file must be int but got 'b'"),
        ('name = "x"\nlayerz = [8]', r"has keys \['layerz'\]; it may have .*'layers'"),
        ("name = ", "must be a readable TOML file"),
    ],
)
def test_bad_file_is_a_usage_error(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        parse(Other, [], flags.read_file(write(tmp_path, text), Other))


def test_file_must_be_readable(tmp_path):
    absent = str(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match=r"--config .*absent.toml must be a readable TOML file"):
        flags.read_file(absent, Other)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="must be a readable TOML file"):
        flags.read_file(str(tmp_path / "binary"), Other)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("unit_rows", -1),
        ("num_workers", 0),
        ("keep_chains", 0),
        ("keep_best", -1),
        ("keep_secs", -1.0),
        ("keep_every_hours", float("nan")),
        ("delta_steps", -1),
        ("max_read_cost", 1.0),
        ("rebase", "always"),
        ("num_ps", -1),
        ("num_shards", -1),
        ("seed", -1),
        ("sparse_learning_rate", 0.0),
        ("dense_learning_rate", float("nan")),
        ("delta_secs", float("inf")),
        ("log_secs", -1.0),
        ("dense_optimizer", "nadam"),
        ("eval", "outline"),
        ("metric", ""),
        ("reduce_factor", 1.0),
        ("min_delta", -0.1),
        ("checkpoint_row_encoding", "int2"),
        ("checkpoint_slot_encoding", "float16"),
    ],
)
def test_config_refuses_a_value_out_of_range(field, value):
    with pytest.raises(UsageError, match=rf"{field} must (not )?be .* but got '?{value}'?"):
        TrainConfig.from_options(data="d", model_dir="m", **{field: value})


def test_unit_must_hold_a_batch():
    with pytest.raises(UsageError, match="unit_rows must be at least the batch size 64 but got 63"):
        TrainConfig.from_options(data="d", model_dir="m", batch_size=64, unit_rows=63)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A config of what a command line gives otherwise than by a flag and a value."""

    folder: Path = option(dataclasses.MISSING, "where", metavar="DIR", positional=True)
    first: int = option(dataclasses.MISSING, "a number", metavar="A", positional=True, least=0)
    inputs: tuple[str, ...] = option((), "what is read", metavar="PATTERN", several=True)
    output: Path | None = option(None, "what is written")
    force: bool = option(False, "replace it")

    def __post_init__(self) -> None:
        check(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passing:
    """A config of a command that passes on what it does not know."""

    kind: str = option(dataclasses.MISSING, "of the rows")
    rest: tuple[str, ...] = option((), "", rest=True)


def read(config, *arguments, **more):
    return flags.read(config, arguments, "prog", "What it does.", **more)


def test_command_line_of_positions_and_of_flags_of_several_values():
    expected = Command(folder=Path("d"), first=2, inputs=("a", "b", "c"), force=True)
    for line in (
        "d 2 --inputs a b --inputs c --force",
        "--force d --inputs a --inputs b c --no-force --force -- 2",
        "d --force --inputs=a --inputs=b --inputs=c --force 2",
    ):
        assert read(Command, *line.split()) == expected
    assert read(Command, "d", "0").inputs == ()


def test_file_gives_what_a_command_line_leaves_out(tmp_path):
    path = write(
        tmp_path, 'folder = "d"\nfirst = 2\ninputs = ["a", "b"]\noutput = "o"\nforce = true\n'
    )
    whole = Command(folder=Path("d"), first=2, inputs=("a", "b"), output=Path("o"), force=True)
    assert read(Command, "--config", path) == whole
    changed = read(Command, f"--config={path}", "e", "--inputs", "c", "--no-force")
    assert changed == dataclasses.replace(whole, folder=Path("e"), inputs=("c",), force=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", r"^prog: DIR is required \(--help lists the flags\)$"),
        ("d", "^prog: A is required"),
        ("d x", "argument A: invalid int value: 'x'"),
        ("d -1", "^first must be at least 0 but got -1$"),
        ("d 1 2", "^prog: unrecognized arguments: 2 "),
        ("d 1 --outpux=x", r"^prog: unrecognized arguments: --outpux=x: did you mean --output\?"),
        ("d 1 --output=", "^output must not be empty but got ''$"),
        ("d 1 --inputs", "argument --inputs: expected at least one argument"),
        ("d 1 --inputs=", "^inputs must not be empty but got ''$"),
    ],
)
def test_wrong_command_line_is_one_line(line, message):
    with pytest.raises(UsageError, match=message):
        read(Command, *line.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first = true", "first in the config file must be int but got True"),
        ('first = 1\ninputs = "a"', "inputs in the config file must be tuple but got 'a'"),
        ("first = 1\noutput = 3", "output in the config file must be str but got 3"),
        ("first = 1\nrest = 3", "has keys .'rest'.; it may have"),
    ],
)
def test_wrong_file_of_a_command_is_one_line(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        read(Command, "--config", write(tmp_path, text), "d")


def test_help_of_a_command_begins_with_what_must_be_given(capsys):
    with pytest.raises(SystemExit):
        read(Command, "--help", epilog="The end.")
    text = capsys.readouterr().out
    assert text.startswith("usage: prog [-h] [--config FILE]")
    assert "What it does." in text
    assert text.endswith("The end.\n")
    named = [text.index(f"\n  {name} ") for name in ("DIR", "A", "--inputs", "--output")]
    assert named == sorted(named)


def test_rest_gets_what_is_unknown_and_fixed_options_are_no_flags(tmp_path):
    assert read(Passing, "--kind=a", "--x=1", "y") == Passing(kind="a", rest=("--x=1", "y"))
    assert read(Passing, "--kind=a") == Passing(kind="a")
    path = write(tmp_path, 'kind = "b"\nrest = ["--z"]')
    assert read(Passing, "--config", path) == Passing(kind="b", rest=("--z",))
    fixed = read(Passing, "--kind=a", fixed={"kind": "c"})
    assert fixed == Passing(kind="c", rest=("--kind=a",))


def test_some_options_are_read_before_the_others_are_known(tmp_path):
    path = write(tmp_path, 'kind = "b"\nother = 1\n[table]\nkind = 2\n')
    assert flags.read_known(Passing, ["--more", f"--config={path}"], "prog").kind == "b"
    assert flags.read_known(Passing, ["--kind=a", "--config", path], "prog").kind == "a"
    path = write(
        tmp_path, "grace_secs = 3.0\n[monitoring]\nmetrics_port = 5\n[cluster]\nnum_ps = 2\n"
    )
    found = flags.read_known(ServerConfig, ["--config", path], "prog")
    assert (found.grace_secs, found.monitoring.metrics_port) == (3.0, 5)
