"""``dcp-comm demo`` from the outside: what it prints, where, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dcp_comm import cli
from dcp_comm.cli.options import UsageError, fraction, whole
from dcp_comm.errors import BackendUnavailable, CommArgumentError, CommTimeout, DcpCommError
from tests.cli.demo_text import write_text

ROOT = Path(__file__).parents[2]
NOISE = ("Traceback", "Error", "OMP_NUM_THREADS", "torch.distributed", "NumPy")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    text = write_text(tmp_path / "text", words=2000)
    return ["demo", "--ranks", "2", "--k", "64", "--rows", "64", "--text", text]


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "dcp_comm", *words]


def environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")
    }
    return {**kept, "PYTHONPATH": str(ROOT)}


def dcp_comm(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(words), env=environment(), capture_output=True, text=True, check=False, timeout=100
    )


def test_json_stands_alone_on_stdout(words: list[str]) -> None:
    ended = dcp_comm([*words, "--json"])
    assert ended.returncode == 0, ended.stderr
    fields = json.loads(ended.stdout)
    assert fields["ok"] is True
    assert (fields["run"]["ranks"], fields["run"]["backend"]) == (2, "torch")
    assert fields["exactness"]["ours"]["text"]["rows"] == 0
    progress = ended.stderr.splitlines()
    assert progress[-1].startswith("PASS: 0 of 260 rows")
    assert all(line.startswith("[") for line in progress[:-1])
    assert not any(noise in ended.stderr for noise in NOISE)


def test_a_mistake_ends_it_with_one_clear_line(words: list[str]) -> None:
    ended = dcp_comm([*words, "--break", "union"])
    assert ended.returncode == 1
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("FAIL: ")
    assert last.endswith("(--break union put a mistake into our way)")
    assert ended.stdout.count("FAIL") == 1
    assert not any(noise in ended.stderr for noise in NOISE)


def test_a_backend_that_cannot_work_is_3(words: list[str]) -> None:
    ended = dcp_comm([*words, "--backend", "fake"])
    assert ended.returncode == 3
    assert ended.stdout == ""
    assert ended.stderr.startswith("dcp-comm: init: backend fake cannot work on every rank")
    assert "run_ranks" in ended.stderr
    assert not any(noise in ended.stderr for noise in NOISE)


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    """A demo that has begun."""
    process = subprocess.Popen(
        command(["demo", "--ranks", "2"]),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_quietly(running: subprocess.Popen[str], number: signal.Signals) -> None:
    """All of it: stderr ends only when the last rank has let go of it."""
    assert running.stderr is not None
    assert running.stderr.readline().startswith("[")
    running.send_signal(number)
    _, rest = running.communicate(timeout=60)
    assert running.returncode == 128 + number
    assert not any(noise in rest for noise in NOISE), rest


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("say no more"), 2),
        (BackendUnavailable("say no more"), 3),
        (CommArgumentError("say no more"), 1),
        (CommTimeout("say no more"), 1),
        (DcpCommError("say no more"), 1),
    ],
)
def test_errors_become_codes(
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("dcp_comm.cli.demo.run", fail)
    assert cli.main(["demo"]) == code
    assert capsys.readouterr().err == "dcp-comm: say no more\n"


def test_one_rank_speaks_for_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What all ranks know is said by rank 0, what one rank knows by that rank."""
    monkeypatch.setenv("RANK", "1")
    for error, told in ((CommTimeout("all"), ""), (CommArgumentError("mine"), "dcp-comm: mine\n")):

        def fail(_: object, error: Exception = error) -> int:
            raise error

        monkeypatch.setattr("dcp_comm.cli.demo.run", fail)
        assert cli.main(["demo"]) == 1
        assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["nothing"],
        ["demo", "--ranks", "1"],
        ["demo", "--k", "0"],
        ["demo", "--rows", "4"],
        ["demo", "--needle-depth", "1.5"],
        ["demo", "--break", "nothing"],
    ],
)
def test_wrong_usage_is_2(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(wrong)
    assert caught.value.code == 2
    assert "usage: dcp-comm" in capsys.readouterr().err


def test_what_all_ranks_would_refuse_is_refused_before_they_start(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr("dcp_comm.cli.relaunch", lambda *_: pytest.fail("ranks were started"))
    assert cli.main([*words, "--backend", "nothing"]) == 1
    assert cli.main([*words, "--text", "/nothing"]) == 2
    assert cli.main([*words, "--k", "2048"]) == 2
    monkeypatch.setenv("DCP_COMM_CHECK", "nothing")
    assert cli.main(words) == 1
    assert capsys.readouterr().err.count("dcp-comm: ") == 4


@pytest.mark.parametrize("size", ["1", "3"])
def test_another_launch_than_was_asked_for_is_refused(
    words: list[str], size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", size)
    assert cli.main(words) == 2


def test_option_types() -> None:
    assert (whole(1)("12"), fraction("0.25")) == (12, 0.25)
    for parse, text in ((whole(1), "0"), (whole(1, 5), "6"), (whole(1), "x"), (fraction, "nan")):
        with pytest.raises(Exception, match=f"{text!r} is no"):
            parse(text)
