"""The console command `embedps`, and `python -m embedps`."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from embedps import __version__
from embedps.__main__ import dispatch
from embedps.cluster.local_processes import _free_ports
from embedps.errors import UsageError
from tests.builders import ROOT, write_dataset
from tests.commands import (
    SMALL,
    environment,
    processes_with,
    read_until,
    script_of,
    wait_until_gone,
)

# As pip writes it, where the checkout is not installed.
SCRIPT = script_of(f"""
import sys
sys.path.append({str(ROOT)!r})
from embedps.__main__ import main
sys.exit(main())
""")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "bin" / "embedps"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def run(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_names_every_command_and_first_steps(script):
    for command, prog in ([script], "embedps"), ([sys.executable, "-m", "embedps"], None):
        prog = prog or "python -m embedps"
        done = run(*command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: {prog} COMMAND ...\n")
        for name in ("plan", "train", "evaluate", "serve", "server", "table", "checkpoint"):
            assert re.search(rf"^  {name} +\w", done.stdout, re.M)
        assert f"\n  {prog} train --data dataset --model-dir run\n" in done.stdout
        assert "75 a server was lost" in done.stdout
        assert run(*command, "--version").stdout == f"embedps {__version__}\n"


@pytest.mark.parametrize("name", ["train", "evaluate", "serve", "server", "checkpoint"])
def test_usage_line_shows_how_a_command_was_called(script, name):
    done = run(script, name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = "COMMAND ..." if name == "checkpoint" else "[-h]"
    assert done.stdout.startswith(f"usage: embedps {name} {shown}")
    done = run(sys.executable, "-m", "embedps", name, "--bogus")
    assert done.returncode == 2
    assert done.stderr.startswith(f"embedps: python -m embedps {name}: ")
    assert done.stderr.count("\n") == 1


def test_help_reads_no_command():
    """Each command's own modules are what takes time, so they wait until it is chosen."""
    code = (
        "import sys\n"
        "from embedps.__main__ import main\n"
        "sys.argv = ['embedps', '--help']\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print(*[name for name in sys.modules if name.startswith('embedps')], file=sys.stderr)\n"
        "heavy = {'numpy', 'pyarrow', 'rich', 'tensorflow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert set(done.stderr.split()) == {
        "embedps",
        "embedps.__main__",
        "embedps.config_fields",
        "embedps.console",
        "embedps.console.command_line",
        "embedps.console.lines",
        "embedps.console.tf_startup",
        "embedps.errors",
    }


@pytest.mark.parametrize("arguments", [[], ["--bogus"]])
def test_no_command_is_a_usage_error(arguments):
    with pytest.raises(UsageError, match=r"^the .*COMMAND.*\(--help lists the flags\)$"):
        dispatch(arguments)


@pytest.mark.parametrize(("given", "near"), [("trian", "did you mean train? "), ("xyz", "")])
def test_unknown_command_is_named_once_with_the_one_that_is_near(script, given, near):
    done = run(script, given)
    wanted = f"embedps: there is no command '{given}': {near}embedps --help lists them\n"
    assert (done.returncode, done.stderr) == (2, wanted)


def test_a_wrong_flag_names_the_program_once(script):
    assert run(script, "train", "--bogus").stderr.startswith("embedps: train: ")


def test_help_names_every_flag_and_help_all_says_what_each_does(script):
    short = run(script, "plan", "--help").stdout
    whole = run(script, "plan", "--help-all").stdout
    assert len(short.splitlines()) <= 110
    flags = set(re.findall(r"(?<=\s)--[a-z][a-z-]+", whole))
    named = {flag for flag in flags if not flag.startswith("--no-")}
    assert named <= set(re.findall(r"--[a-z][a-z-]+", short))
    assert whole.count("(default: ") > short.count("(default: ") + 40


def test_command_fails_with_its_own_code_and_line(script, tmp_path):
    done = run(script, "checkpoint", "verify", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"embedps: there is no directory '{tmp_path / 'nowhere'}'\n"
    (tmp_path / "empty").mkdir()
    assert run(script, "checkpoint", "verify", tmp_path / "empty").returncode == 1


def test_script_finds_a_users_model_in_the_working_directory(script, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "net.py").write_text(
        "import dataclasses\n\n\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\n"
        "class Config:\n    depth: int = 3\n\n\n"
        "def make(config, dataset): ...\n"
    )
    done = run(script, "train", "--model=mine.net", "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--depth" in done.stdout


@pytest.mark.multiprocess
@pytest.mark.slow
def test_script_starts_a_local_cluster_and_starts_itself_again_after_a_loss(script, tmp_path):
    """Its servers start too, though no `-m` is on its command line."""
    dataset = write_dataset(tmp_path / "set")
    model_dir = tmp_path / "m"
    (port,) = _free_ports(1)
    where = [f"--data={dataset.directory}", f"--model-dir={model_dir}"]
    more = [
        "--num-ps=1",
        "--eval=none",
        "--epochs=40",
        "--delta-secs=0.5",
        "--log-secs=0.1",
        f"--metrics-port={port}",
        *SMALL,
    ]
    process = subprocess.Popen(
        ["bin/embedps", "train", *where, *more],
        cwd=tmp_path,  # the script's path is relative, and must still lead to it
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    read_until(process, "delta")
    (server,) = (
        pid
        for pid, command in processes_with(str(model_dir / "logs" / "ps-0.log")).items()
        if "embedps.server" in command
    )
    os.kill(server, signal.SIGKILL)
    out = read_until(process, "recovered")
    # Either its process's end is noticed first or a broken connection to it.
    assert "parameter server 0 ended by SIGKILL" in out or "a parameter server is lost" in out
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        assert b"\nembedps_train_recovery_seconds_count 1.0\n" in answer.read()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "stopped" in out
    wait_until_gone(str(model_dir))
