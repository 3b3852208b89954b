"""A declared benchmark: its flags, its result, and the same rows for the terminal and a page."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks import child, harness, layout, report
from benchmarks.harness import DIR, Benchmark, LimitError, Options, Run
from benchmarks.layout import Table, figures, means, spread
from embedps.config_fields import option
from embedps.errors import UsageError
from tests.builders import ROOT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What is measured."""

    rows: int = option(1000, "of the table", least=1)
    sizes: tuple[int, ...] = option((1, 2), "of requests", least=1)
    kinds: tuple[str, ...] = option(("new",), "of streams", some_of=("new", "zipf"))
    fast: bool = option(False, "whether to hurry")
    data: str | None = option(None, "a dataset", metavar=DIR)


def measure(config: Config, run: Run) -> harness.Content:
    earlier = run.earlier().get("results", {})
    run.save({"results": earlier | {"begun": True}})
    return {"config": {"dim": 16}, "results": {**earlier, str(config.rows): len(config.sizes)}}


def rows_of(content: harness.Content) -> list[layout.Part]:
    rows = [[rows, str(found)] for rows, found in content["results"].items()]
    return [Table(heads=["rows", "[found]"], rows=rows), "A note."]


def draw(content: harness.Content, path: Path) -> None:
    path.write_text(str(len(content["results"])))


BENCHMARK = Benchmark(
    name="example",
    about="Measures rows.",
    config=Config,
    measure=measure,
    layout=rows_of,
    failure=lambda content: "7 rows are too few" if "7" in content["results"] else None,
    plot=draw,
)


def test_a_result_has_its_command_its_options_and_no_paths_of_a_machine(tmp_path, capsys):
    output = tmp_path / "result.json"
    flags = ["--rows=5", "--sizes=3,4,5", "--fast", f"--data={tmp_path}", f"--output={output}"]
    assert BENCHMARK.run(flags) == 0
    content = json.loads(output.read_text())
    assert content["benchmark"] == "example"
    wanted = "python -m benchmarks.example --rows 5 --sizes 3,4,5 --fast --data DIR"
    assert content["command"] == wanted
    assert content["environment"]["cores"] >= 1
    assert content["config"] == {
        "rows": 5,
        "sizes": [3, 4, 5],
        "kinds": ["new"],
        "fast": True,
        "dim": 16,
    }
    assert content["results"] == {"5": 3}
    assert output.with_suffix(".png").read_text() == "1"
    shown = capsys.readouterr().out
    assert "[found]" in shown  # brackets are no markup
    assert "A note." in shown


def test_options_come_from_a_file_too_and_flags_win(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("rows = 5\nkinds = ['zipf']\n")
    output = tmp_path / "result.json"
    assert BENCHMARK.run([f"--config={file}", "--rows=6", f"--output={output}"]) == 0
    config = json.loads(output.read_text())["config"]
    assert (config["rows"], config["kinds"]) == (6, ["zipf"])


def test_a_run_adds_to_the_earlier_result(tmp_path):
    output = tmp_path / "result.json"
    for rows in (5, 6):
        assert BENCHMARK.run([f"--rows={rows}", f"--output={output}"]) == 0
    assert json.loads(output.read_text())["results"] == {"5": 2, "6": 2}


def test_a_limit_that_does_not_hold_fails_after_the_result_is_written(tmp_path):
    output = tmp_path / "result.json"
    with pytest.raises(LimitError, match="7 rows are too few"):
        BENCHMARK.run(["--rows=7", f"--output={output}"])
    assert json.loads(output.read_text())["results"] == {"7": 2}


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--rows=0", "rows must be at least 1 but got 0"),
        ("--kinds=new,old", "--kinds must be of new, zipf but has old"),
        ("--output=.", r"--output: must be a file, such as .*result\.json"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(flag, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        BENCHMARK.run([f"--output={tmp_path / 'result.json'}", flag])
    assert not list(tmp_path.iterdir())


def test_help_has_the_docstring_and_each_option(capsys):
    with pytest.raises(SystemExit):
        BENCHMARK.run(["--help"])
    told = capsys.readouterr().out
    assert "Measures rows." in told
    assert "of the table (default: 1000)" in told
    assert "benchmarks/results/example.json" in told


def test_a_table_is_the_same_on_a_page():
    table = figures("3 rows", [["seconds", "1.0", "2"], ["bytes", "5"]])
    assert layout.markdown([table, "A note."]).splitlines() == [
        "| 3 rows | measured | limit |",
        "| --- | --- | --- |",
        "| seconds | 1.0 | 2 |",
        "| bytes | 5 |  |",
        "",
        "A note.",
    ]
    assert list(figures("rows", [["bytes", "5"]]).heads) == ["rows", "measured"]
    with pytest.raises(ValueError, match="a row must have 2 cells"):
        Table(heads=["a", "b"], rows=[["1"]])


def test_spreads_and_means_tell_the_range():
    assert spread(report.spread([1.0, 2.0, 4.0]), ".1f") == "2.0 (1.0 to 4.0)"
    assert means([0.5]) == "0.5000"
    assert means([0.25, 0.75]) == "0.5000 (0.2500 to 0.7500)"


def test_a_function_is_called_in_a_process_of_its_own():
    assert child.call("posixpath:join", a="x") == "x"
    with pytest.raises(child.ChildError, match="the process of posixpath:join ended with 1"):
        child.call("posixpath:join", wrong=1)
    with pytest.raises(child.ChildError, match=r"calendar ended with 2: --wrong"):
        child.run("calendar", "--wrong")


PROGRAMS = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\nBENCHMARK = " in path.read_text()
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_declared_program_has_its_modules_name(name, capsys):
    benchmark = harness.load(name)
    assert benchmark.name == name
    assert f"python -m benchmarks.{name}" in (benchmark.about or "")
    with pytest.raises(SystemExit):
        benchmark.run(["--help"])
    assert "--output FILE" in capsys.readouterr().out
