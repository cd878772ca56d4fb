"""The soak itself, shorter than by hand; its command line takes the full figures."""

import pytest

from tests.soak.history import violations
from tests.soak.schedule import Schedule
from tests.soak.supervisor import Supervisor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]

TOO_LATE = ("CommTimeout, need CommPeerLost", "failed after")
"""What `tests.test_killed_ranks` expects to fail: with four ranks one hears of a loss late."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "gathers", "seed"), [(2, 2000, 11), (4, 600, 12)])
def test_nothing_wrong_is_ever_reported_as_success_and_nothing_grows(
    ranks: int, gathers: int, seed: int
) -> None:
    schedule = Schedule(seed, ranks, gathers, timeout=5.0)
    supervisor = Supervisor(schedule)
    supervisor.run()
    found = supervisor.troubles + violations(schedule, supervisor.reports)
    if ranks > 3:
        found = [each for each in found if not any(words in each for words in TOO_LATE)]
    assert found == []
