"""The pool of real ranks: what hangs, dies or cannot start becomes a failure that says so."""

import time

import pytest

from dcp_comm.testing.conformance import ConformanceFailure
from dcp_comm.testing.pool import RankPool
from tests.contract.test_gloo import PLUGINS
from tests.processes import with_path

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(500)]

UP_SECONDS = 120
"""What coming up may take, most of it the import of torch."""
HARMLESS, SPOILT = "an_empty_group_is_legal", "blocks_go_where_they_belong"


def pool(backend: str, timeout: float) -> RankPool:
    return RankPool(backend, 2, timeout=timeout, environment=lambda rank: with_path(PLUGINS))


def test_a_dead_rank_fails_its_rule_and_is_replaced_for_the_next() -> None:
    with pool("dying", UP_SECONDS) as ranks:
        ranks.run(HARMLESS)
        started = time.monotonic()
        with pytest.raises(ConformanceFailure) as failure:
            ranks.run(SPOILT)
        assert time.monotonic() - started < UP_SECONDS / 2  # what a call may take
        assert "rank 1 ended with exit code 7\ncannot go on" in str(failure.value)
        assert "CommPeerLost" in str(failure.value)
        ranks.run(HARMLESS)


def test_a_rank_that_hangs_fails_its_rule_in_time() -> None:
    with pool("hanging", 10) as ranks:
        ranks.timeout = UP_SECONDS
        ranks.run(HARMLESS)
        ranks.timeout = 10
        started = time.monotonic()
        with pytest.raises(ConformanceFailure) as failure:
            ranks.run(SPOILT)
        assert time.monotonic() - started < 10 + 20
        assert "rank 1 did not answer in time" in str(failure.value)
        assert "CommTimeout" in str(failure.value)


def test_ranks_that_cannot_start_fail_every_rule_at_once() -> None:
    with pool("absent", UP_SECONDS) as ranks:
        for name in (HARMLESS, SPOILT):
            with pytest.raises(ConformanceFailure, match="it needs a machine that nobody has"):
                ranks.run(name)
            assert ranks._ranks == []
