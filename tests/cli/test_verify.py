"""``dcp-comm verify``: what it finds, what it prints, how it ends, alone and on a real launch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dcp_comm import cli
from dcp_comm.cli import verify
from dcp_comm.communicator import Communicator
from dcp_comm.errors import BackendUnavailable
from dcp_comm.kernels import torch_ops
from dcp_comm.testing import exactness, run_ranks
from dcp_comm.testing.conformance import CHECKS, CheckResult, ConformanceFailure
from dcp_comm.topk import keys
from dcp_comm.topk.choice import STRATEGIES
from tests import oracle
from tests.contract import faults

ROOT = Path(__file__).parents[2]
LAUNCH = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "test",
}
FEW = "slots_follow_rank_order,gather_merges_exactly"

processes = pytest.mark.xdist_group("processes")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only rank of a launch."""
    monkeypatch.setattr(cli, "COMMANDS", ("verify",))
    for name, value in LAUNCH.items():
        monkeypatch.setenv(name, value)


def words(text: str) -> list[str]:
    """The lines, blanks between columns made one."""
    return [" ".join(line.split()) for line in text.splitlines()]


# What it finds


@pytest.mark.parametrize("size", [1, 2, 3])
def test_everything_holds_on_every_rank(size: int) -> None:
    for results in run_ranks(verify.verify, size, verify.NAMES):
        assert [each.name for each in results] == [*CHECKS, *verify.MERGES]
        assert [each.detail for each in results if not each.ok] == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tie_rule_that_is_flipped_in_the_merge_is_found(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(scores: Tensor, ids: Tensor, *, mask_neg_inf: bool) -> Tensor:
        right = keys.encode(scores, ids, mask_neg_inf=mask_neg_inf)
        return torch.where(right == keys.PAD, right, (right >> 32 << 32) | (ids + 1))

    monkeypatch.setattr(torch_ops, "encode", encode)
    monkeypatch.setattr(torch_ops, "ids_of", lambda flipped: (flipped & 0xFFFFFFFF) - 1)
    name = f"{strategy}_merges_exactly"
    for (result,) in run_ranks(verify.verify, 2, [name]):
        assert (result.name, result.ok) == (name, False)
        assert result.detail.endswith("rows differ from a plain sort")


def test_a_rank_alone_that_is_wrong_fails_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(comm: Communicator) -> int:
        if comm.rank == 1:
            faults.spoil(comm, faults.SwapsSlots)
        return exactness.wrong_rows(comm, "gather")

    found = run_ranks(spoilt, 3)
    assert found[0] > 0
    assert found == [found[0]] * 3


def test_what_kills_the_communicator_fails_all_that_follows() -> None:
    def dead(comm: Communicator) -> list[CheckResult]:
        comm.abort()
        return verify.verify(comm, FEW.split(","))

    for results in run_ranks(dead, 2):
        assert [each.ok for each in results] == [False, False]
        assert all("was aborted" in each.detail for each in results)


def test_the_plain_answer_is_the_contract_s() -> None:
    rows, lengths = exactness.some_rows()
    wanted, counts = oracle.topk(rows.numpy(), lengths, exactness.K)
    plain = exactness.plain_topk(rows, lengths, exactness.K)
    assert [len(row) for row in plain] == counts.tolist()
    assert plain == [row[row >= 0].tolist() for row in wanted]
    assert 0 in counts
    assert any(0 < count < exactness.K for count in counts)
    assert rows.isnan().any()


# What it prints, and how it ends


@pytest.mark.usefixtures("launched")
def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "--backend", "torch", "--checks", FEW]) == 0
    head, _, header, first, second, _, last = words(capsys.readouterr().out)
    assert head == "backend torch, 1 ranks, cpu"
    assert header == "check ok seconds detail"
    assert first.startswith("slots_follow_rank_order yes 0.")
    assert second.startswith("gather_merges_exactly yes 0.")
    assert last == "2 of 2 hold"


@pytest.mark.usefixtures("launched")
def test_what_does_not_hold_is_told_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(comm: Communicator) -> None:
        raise ConformanceFailure("slots: wrong")

    monkeypatch.setitem(CHECKS, "slots_follow_rank_order", broken)
    monkeypatch.setattr(verify, "wrong_rows", lambda comm, strategy: 7)
    assert cli.main(["verify", "--checks", FEW]) == 1
    printed = words(capsys.readouterr().out)
    assert printed[3].startswith("slots_follow_rank_order NO 0.")
    assert printed[3].endswith(" slots: wrong")
    assert printed[4].endswith(" 7 rows differ from a plain sort")
    assert printed[-1] == "0 of 2 hold"
    assert cli.main(["verify", "--checks", FEW, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["checks"][0]["detail"]) == (False, "slots: wrong")


def test_what_several_ranks_found_stands_in_one_line() -> None:
    result = CheckResult("a_rule", False, 0.25, "rank 0: this\nrank 1: that")
    (text,) = run_ranks(verify.as_text, 1, [result])
    assert "a_rule NO 0.250 rank 0: this; rank 1: that" in words(text)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("option", "code", "said"),
    [
        ("--backend nonsense", 2, "--backend: init: backend: got 'nonsense', need one of auto,"),
        ("--ranks 2", 2, "--ranks: the launcher started 1; leave --ranks out"),
    ],
)
def test_wrong_usage(option: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", *option.split()]) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--checks every_dtype_move", "the nearest is 'every_dtype_moves'"),
        ("--checks ,", "'' is no check"),
        ("--timeout 0", "'0' is no number of seconds above 0"),
        ("--timeout inf", "'inf' is no number of seconds above 0"),
        ("--timeout soon", "'soon' is no number of seconds above 0"),
        ("--ranks 0", "'0' is no whole number in 1 .. 64"),
    ],
)
def test_options_that_do_not_parse(
    option: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", *option.split()])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("launched")
def test_a_backend_that_cannot_work_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init(backend: str, **options: object) -> Communicator:
        raise BackendUnavailable(f"backend {backend}: not today")

    monkeypatch.setattr(verify, "init", init)
    assert cli.main(["verify", "--backend", "pynccl"]) == 3
    assert capsys.readouterr().err == "dcp-comm: backend pynccl: not today\n"


# On a real launch


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process of its own, outside of any launch."""
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCH}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@processes
def test_it_starts_its_own_ranks() -> None:
    result = command("dcp_comm", "verify", "--ranks", "2", "--checks", FEW, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["backend"], report["ranks"], report["device"]) == ("torch", 2, "cpu")
    assert [each["ok"] for each in report["checks"]] == [True, True]


@processes
def test_it_joins_a_launch() -> None:
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    result = command(*launcher, "-m", "dcp_comm", "verify", "--backend", "torch")
    assert result.returncode == 0
    printed = words(result.stdout)
    assert printed[0] == "backend torch, 2 ranks, cpu"
    assert printed[-1] == f"{len(verify.NAMES)} of {len(verify.NAMES)} hold"
    assert [line.split()[0] for line in printed[3:-2]] == list(verify.NAMES)
