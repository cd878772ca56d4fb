"""Every fault and every published mistake that this project knows of, and the tests that try it."""

from tests.catalogue.case import Case
from tests.catalogue.faults import FAULTS, SECURITY
from tests.catalogue.published_rows import DEAL, SELECTION
from tests.catalogue.published_runs import MEMORY, PROPERTIES, RUNS

CASES: dict[str, Case] = {
    **FAULTS,
    **SECURITY,
    **SELECTION,
    **DEAL,
    **MEMORY,
    **RUNS,
    **PROPERTIES,
}
