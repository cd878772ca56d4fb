"""The soak itself, shorter than by hand; its command line takes the full figures."""

import pytest

from tests.soak.history import violations
from tests.soak.schedule import Schedule
from tests.soak.supervisor import Supervisor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("ranks", "gathers", "seed"), [(2, 2000, 11), (4, 600, 12)])
def test_nothing_wrong_is_ever_reported_as_success_and_nothing_grows(
    ranks: int, gathers: int, seed: int
) -> None:
    schedule = Schedule(seed, ranks, gathers, timeout=5.0)
    supervisor = Supervisor(schedule)
    supervisor.run()
    found = supervisor.troubles + violations(schedule, supervisor.reports)
    assert found == []
