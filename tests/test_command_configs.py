"""Every command's options: a flag, a key of the file and Python take and refuse the same."""

import json
from typing import Any

import pytest

from embedps.checkpoint.__main__ import DiffConfig, EvictConfig, RollbackConfig, StatsConfig
from embedps.compare import CompareConfig
from embedps.config_fields import make, options_of, without_none
from embedps.console import flags
from embedps.errors import UsageError
from embedps.evaluate import EvaluateConfig
from embedps.export import ExportConfig
from embedps.pipelines.describe import DescribeConfig
from embedps.pipelines.infer import InferConfig
from embedps.pipelines.ingestion.interactions import Options as InteractionsOptions
from embedps.pipelines.ingestion.options import Options as IngestOptions
from embedps.pipelines.synthetic.click_log import Options as GenerateOptions
from embedps.predict import PredictConfig
from embedps.server import ServerConfig
from embedps.serving.server.serve_config import ServeConfig

NEEDED: dict[type, dict[str, Any]] = {
    DescribeConfig: {"directory": "d"},
    InferConfig: {"input": "a.csv"},
    DiffConfig: {"directory": "d", "before": 1, "after": 2},
    CompareConfig: {"first": "m", "second": "n"},
    EvaluateConfig: {"model_dir": "m"},
    EvictConfig: {"directory": "d", "table": "t", "before_step": 1},
    ExportConfig: {"model_dir": "m", "output": "o"},
    GenerateOptions: {"rows": 9, "output": "log.tsv"},
    IngestOptions: {"input": ["i"], "output": "o", "schema": "criteo"},
    InteractionsOptions: {"train": ["a", "b"], "test": "t", "output": "o"},
    PredictConfig: {"model_dir": "m", "input": ["i"], "output": "o"},
    RollbackConfig: {"directory": "d", "to": 1},
    ServeConfig: {"model_dir": ["m", "n"], "name": ["a", "b"]},
    ServerConfig: {},
    StatsConfig: {"directory": "d"},
}
NUMBERS = ("0", "-1", "1", "0.5", "nan", "inf", "1e400", str(2**31), str(2**70), "9" * 5000)


def outcome(read, *arguments) -> Any:
    """A config, or the one line that refuses it."""
    try:
        return read(*arguments)
    except UsageError as error:
        (line,) = str(error).splitlines()
        return line


@pytest.mark.parametrize("config", NEEDED, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_a_flag_a_key_and_python_take_the_same(tmp_path, config):
    needed = NEEDED[config]
    for option in options_of(config):
        kind = without_none(option.hint)
        flag, file = flags.flag_name(option.name), tmp_path / "config.toml"
        if option.field.metadata.get("positional") or kind not in (int, float, bool):
            continue
        for text in ("true", "false") if kind is bool else NUMBERS:
            rest = {k: v for k, v in needed.items() if k != option.name}
            lines = "".join(f"{k} = {json.dumps(v)}\n" for k, v in rest.items())
            file.write_text(lines)
            given = f"{flag}={text}"
            if kind is bool:
                given = flag if text == "true" else flag.replace("--", "--no-")
            by_flag = outcome(flags.read, config, [f"--config={file}", given], "p", None)
            file.write_text(f"{lines}{option.name} = {text}\n")
            by_file = outcome(flags.read, config, [f"--config={file}"], "p", None)
            if len(text) > 4000 and kind is int:  # Python reads no such number
                assert isinstance(by_flag, str)
                assert isinstance(by_file, str)
                continue
            number: Any = text == "true" if kind is bool else float(text)
            if text.removeprefix("-").isdigit() and len(text) < 4000:
                number = int(text)
            by_python = outcome(make, config, {**rest, option.name: number})
            if "TOML" in str(by_file):
                continue
            assert type(by_file) is type(by_flag) is type(by_python), (given, by_flag, by_file)
            if isinstance(by_flag, config):
                assert by_flag == by_file == by_python
            else:
                assert option.name in by_flag.replace("-", "_")


@pytest.mark.parametrize("config", NEEDED, ids=lambda c: f"{c.__module__}.{c.__name__}")
def test_every_option_is_in_the_help(capsys, config):
    with pytest.raises(SystemExit):
        flags.read(config, ["--help"], "p", None)
    text = capsys.readouterr().out
    for option in options_of(config):
        metadata = option.field.metadata
        assert metadata["help"] or metadata.get("rest")
        if metadata.get("positional"):
            assert f"\n  {metadata['metavar']} " in text
        elif not metadata.get("rest"):
            assert f"\n  {flags.flag_name(option.name)}" in text
