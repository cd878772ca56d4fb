"""Compiled regions on two processes over gloo: what they exchange is what eager calls do."""

import pytest

from tests.launches import reports

pytestmark = [pytest.mark.xdist_group("processes"), pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    "compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
)
def test_two_ranks_compile_and_exchange(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls are counted, and the ranks agree."""
    monkeypatch.setenv("COMPILER", compiler)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    told = reports("tests.compiled.ranks", 2, seconds=300.0)["compiled"]
    assert [rank["agree"] for rank in told] == [[True] * 6] * 2
    # 2 x 3 float32: gathered 24, half of 48 swapped, scattered 24, reduced 24, told 24
    assert [rank["bytes_sent"] for rank in told] == [[120, 120]] * 2
    assert told[0]["first"] == told[1]["first"]
    assert [rank["name"] for rank in told] == ["world~2"] * 2
