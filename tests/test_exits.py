"""Ends of processes beside daemon threads: who is waited for, for how long, and what is let go."""

import subprocess
import sys
import textwrap

import pytest

from tests.processes import ROOT

# Comes late, as the last thing that the interpreter does on its way out.
CLOCK = """
import atexit, time
atexit.register(lambda: print(time.monotonic() - started, flush=True))
"""


def ended(code: str) -> tuple[float, list[str]]:
    """Run a program that sets ``started``; seconds that its exit handlers took, and other words."""
    command = [sys.executable, "-c", CLOCK + textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    *words, took = done.stdout.splitlines()
    return float(took), words


@pytest.mark.parametrize(("nap", "least", "most"), [(0.5, 0.4, 1.4), (60, 1.4, 20)])
def test_what_was_left_behind_is_given_a_moment_to_end(
    nap: float, least: float, most: float
) -> None:
    took, _ = ended(
        f"""
        from dcp_comm.deadline import Deadline
        from dcp_comm.errors import CommTimeout
        try:
            Deadline(0.01).run(lambda: time.sleep({nap}), "sleeping")
        except CommTimeout:
            started = time.monotonic()
        """
    )
    assert least < took < most


def test_a_thread_that_has_done_its_work_lets_go_of_it_before_the_end() -> None:
    """Destructors of torch's objects come back from C++ too."""
    _, words = ended(
        """
        import threading
        from functools import partial
        from dcp_comm import exits

        class Slow:
            def __del__(self):
                time.sleep(0.5)
                print("gone", flush=True)

        go = threading.Event()
        exits.start_daemon(partial(lambda slow: go.wait(), Slow()), "letting go")
        started = time.monotonic()
        go.set()
        """
    )
    assert words == ["gone"]


@pytest.mark.parametrize(("over", "said"), [(True, ["gone"]), (False, [])])
def test_a_group_outlives_its_works_or_the_process_which_does_not_wait(
    over: bool, said: list[str]
) -> None:
    """A destructor would wait for works that are not over."""
    took, words = ended(
        f"""
        from dcp_comm import gloo

        class Work:
            def is_completed(self):
                return {over}

        class Group:
            def __del__(self):
                print("gone", flush=True)

        try:
            with gloo.outliving(Group(), [Work()]):
                raise ValueError
        except ValueError:
            started = time.monotonic()
        """
    )
    assert words == said
    assert took < 1.4
