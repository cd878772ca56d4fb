"""The emulator itself: what is right runs right in every order, and what is wrong is named."""

import threading
from pathlib import Path

import pytest
import torch

from dcp_comm.kernels.cuda.sources import Source
from tests.kernels.simt.build import BuildError, build, missing, wrapper
from tests.kernels.simt.emulator import Emulator, LaunchError
from tests.kernels.simt.guards import Guards, fenced, unreadable

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("simt"),
]

SOURCES = Path(__file__).parent / "sources"
SEEDS = range(5)
MORE, LINE = r"\(and \d+ more\) ", r"of line \d+"


def emulator(name: str, seed: int = 0, **options: bool | tuple[str, ...]) -> Emulator:
    return Emulator([Source.read(SOURCES / f"{name}.cu")], seed=seed, **options)  # type: ignore[arg-type]


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-(2**40), 2**40, shape, generator=generator)


@pytest.mark.parametrize("sanitize", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_right_kernels_are_right_in_every_order(seed: int, sanitize: bool) -> None:
    run = emulator("simple", seed, sanitize=sanitize)
    guards = Guards()
    given = guards.copy(numbers(20, 700))
    sums, scan = (guards.empty(n, dtype=torch.int64) for n in (20, 512))
    run.launch("row_sum", (20, 1), 256, 0, given.data_ptr(), sums.data_ptr(), 700)
    run.launch("prefix_sum", (1, 1), 512, 4096, given.data_ptr(), scan.data_ptr())
    guards.check()
    assert torch.equal(sums, given.sum(1))
    assert torch.equal(scan, given.flatten()[:512].cumsum(0))


def test_the_portable_switch_does_the_same() -> None:
    given, sums = numbers(3, 700), torch.zeros(3, dtype=torch.int64)
    run = emulator("simple", 2, flags=("-DSIMT_PORTABLE",))
    run.launch("row_sum", (3, 1), 1024, 0, given.data_ptr(), sums.data_ptr(), 700)
    assert torch.equal(sums, given.sum(1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kernel", "extra"), [("warp_builtins", ()), ("number_builtins", (0x7FC00000,))]
)
def test_builtins(kernel: str, extra: tuple[int, ...], seed: int) -> None:
    out = torch.full((64,), -1)
    emulator("builtins", seed).launch(kernel, (1, 1), 64, 0, out.data_ptr(), *extra)
    assert out.tolist() == [0] * 64


def test_loads_stores_and_vectors() -> None:
    given, out = torch.arange(12, dtype=torch.int32), torch.zeros(12, dtype=torch.int32)
    arguments = given.data_ptr(), out.data_ptr()
    emulator("builtins").launch("memory_builtins", (1, 1), 1, 0, *arguments)
    assert out.tolist() == [3, 2, 1, 0, 4, 5, 6, 7, 10, 11, 8, 9]


@pytest.mark.parametrize("seed", SEEDS)
def test_atomic_operations(seed: int) -> None:
    tickets, totals = torch.full((96,), -1), torch.zeros(6, dtype=torch.int64)
    arguments = tickets.data_ptr(), totals.data_ptr()
    emulator("builtins", seed).launch("atomic_builtins", (1, 1), 96, 0, *arguments)
    assert sorted(tickets.tolist()) == list(range(96))
    assert totals.tolist() == [96, 5, 95, -1, 95 * 48, 96 + 7 + 4 + 4]


def test_seeds_take_the_threads_in_different_orders() -> None:
    orders = []
    for seed in SEEDS:
        tickets, totals = torch.full((96,), -1), torch.zeros(6, dtype=torch.int64)
        arguments = tickets.data_ptr(), totals.data_ptr()
        emulator("builtins", seed).launch("atomic_builtins", (1, 1), 96, 0, *arguments)
        orders.append(tuple(tickets.tolist()))
    assert orders[0] == tuple(range(96))
    assert orders[1] == tuple(reversed(range(96)))
    assert orders[2] == orders[0]  # without a barrier
    assert len(set(orders)) == len(orders) - 1


@pytest.mark.parametrize(
    ("kernel", "blocks", "threads", "right"),
    [
        ("missing_barrier", 1, 64, [64 * 63 // 2]),
        ("missing_syncwarp", 1, 32, [lane ^ 1 for lane in range(32)]),
        ("torn_counter", 1, 64, [64]),
        ("chained_blocks", 16, 1, list(range(1, 17))),
    ],
)
def test_a_race_shows_under_some_seed(
    kernel: str, blocks: int, threads: int, right: list[int]
) -> None:
    seen = []
    for seed in SEEDS:
        out = torch.zeros(len(right), dtype=torch.int64)
        run = emulator("wrong", seed, sanitize=False)
        run.launch(kernel, (blocks, 1), threads, 0, out.data_ptr())
        seen.append(out.tolist() == right)
    assert not all(seen)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("early_exit", rf"deadlock; thread 0 {MORE}waits at the barrier {LINE}; thread 3 exited"),
        ("two_barriers", rf"thread \d+: at the barrier {LINE} while others wait at that {LINE}"),
        (
            "absent_lanes",
            rf"thread 0 {MORE}waits at line \d+ for .* ffffffff; thread 16 {MORE}exit",
        ),
        ("foreign_mask", r"thread \d+: line \d+: mask 0000ffff lacks this lane"),
        ("split_collectives", rf"deadlock; thread 0 {MORE}waits at .*; thread 16 {MORE}waits at"),
    ],
)
def test_threads_that_miss_each_other_are_named(kernel: str, words: str, seed: int) -> None:
    out = torch.zeros(64, dtype=torch.int64)
    run = emulator("wrong", seed)
    with pytest.raises(LaunchError, match=rf"kernel {kernel}, block \(\d, 0\).*{words}"):
        run.launch(kernel, (2, 1), 64, 0, out.data_ptr())
    run.launch("unwritten", (1, 1), 64, 8, out.data_ptr())  # it works again


@pytest.mark.parametrize(
    ("kernel", "arguments", "words"),
    [
        ("index_beyond", ("out", 8), r"thread 0: array index out of bounds at .*wrong\.cu:\d+"),
        ("dynamic_beyond", (64,), "wrote behind its 64 bytes of dynamic shared memory"),
        ("dynamic_beyond", (4000,), "wrote behind its 64 bytes of dynamic shared memory"),
        ("overflow", ("out", 2**31 - 1), "signed overflow"),
        ("misaligned", ("in", "out"), "misaligned"),
        ("bad_address", (4096,), "thread 0: no such memory at 0x1000"),
        ("bad_address", (0,), "null"),
        ("divide", ("out", 0), "division by zero"),
        ("trap", (0,), "thread 0: __trap at line"),
    ],
)
def test_what_is_undefined_is_named(
    kernel: str, arguments: tuple[str | int, ...], words: str
) -> None:
    tensors = {name: torch.zeros(8, dtype=torch.int64) for name in ("in", "out")}
    values = [tensors[a].data_ptr() if isinstance(a, str) else a for a in arguments]
    with pytest.raises(LaunchError, match=words):
        emulator("wrong").launch(kernel, (1, 1), 1, 64, *values)


def test_hardware_signals_are_errors_without_the_sanitizer_too() -> None:
    run = emulator("wrong", sanitize=False)
    for kernel, arguments in (("bad_address", (0,)), ("divide", (fenced_out().data_ptr(), 0))):
        with pytest.raises(LaunchError, match=rf"kernel {kernel}, block \(0, 0\), thread 0"):
            run.launch(kernel, (1, 1), 1, 0, *arguments)


def fenced_out() -> torch.Tensor:
    return fenced(torch.zeros(1, dtype=torch.int64))


def test_unwritten_shared_memory_holds_poison_in_every_block() -> None:
    poison = int.from_bytes(b"\xa5" * 8, "little", signed=True)
    out = torch.zeros(2, dtype=torch.int64)
    emulator("wrong").launch("unwritten", (2, 1), 1, 8, out.data_ptr())
    assert out.tolist() == [poison, poison]


@pytest.mark.parametrize(
    ("grid", "threads", "shared", "count", "words"),
    [
        ((0, 1), 1, 0, 4, "grid x: got 0"),
        ((1, 65536), 1, 0, 4, "grid y: got 65536"),
        ((1, 1), 257, 0, 4, "threads: got 257, need 1 to 256"),
        ((1, 1), 1, 232449, 4, "shared bytes: got 232449"),
        ((1, 1), 1, 0, 3, "arguments: got 3, need 4 to 4"),
    ],
)
def test_illegal_launches_are_refused(
    grid: tuple[int, int], threads: int, shared: int, count: int, words: str
) -> None:
    with pytest.raises(LaunchError, match=f"kernel add_scalar: {words}"):
        emulator("simple").launch("add_scalar", grid, threads, shared, *[0] * count)


def test_negative_arguments_arrive() -> None:
    given, out = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    arguments = given.data_ptr(), -7, out.data_ptr(), 5
    emulator("simple").launch("add_scalar", (2, 1), 4, 0, *arguments)
    assert out.tolist() == [-7, -6, -5, -4, -3]


def test_python_threads_take_turns() -> None:
    run, given = emulator("simple", 2), numbers(50, 300)
    outs = [torch.zeros(50, dtype=torch.int64) for _ in range(4)]
    threads = [
        threading.Thread(
            target=run.launch,
            args=("row_sum", (50, 1), 128, 0, given.data_ptr(), out.data_ptr(), 300),
        )
        for out in outs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(out, given.sum(1)) for out in outs)


@pytest.mark.parametrize("poison", [0xFF, 0xA5])
@pytest.mark.parametrize("row_stride", [None, 5])
def test_guards_see_what_is_written_around_a_tensor(poison: int, row_stride: int | None) -> None:
    for offset, inside in ((-1, False), (0, True), (2, True), (3, row_stride is None), (13, False)):
        guards = Guards(poison)
        made = guards.empty(2, 3, dtype=torch.int64, row_stride=row_stride)
        assert made.view(torch.uint8).unique().tolist() == [poison]
        address = made.data_ptr() + 8 * offset
        emulator("wrong").launch("bad_address", (1, 1), 1, 0, address)
        if inside:
            guards.check()
        else:
            with pytest.raises(AssertionError, match=f"the first at byte {8 * offset}$"):
                guards.check()


def test_reading_past_a_fence_or_what_is_unreadable_is_an_error() -> None:
    run, out = emulator("simple", 2), torch.zeros(1, dtype=torch.int64)
    for tensor, length in ((fenced(numbers(30)), 31), (unreadable(30, dtype=torch.int64), 1)):
        with pytest.raises(LaunchError, match=r"kernel row_sum.*no such memory"):
            run.launch("row_sum", (1, 1), 32, 0, tensor.data_ptr(), out.data_ptr(), length)
    whole = fenced(numbers(30))
    run.launch("row_sum", (1, 1), 32, 0, whole.data_ptr(), out.data_ptr(), 30)
    assert out.item() == numbers(30).sum()


def test_the_wrapper_refuses_what_it_cannot_stand_for(tmp_path: Path) -> None:
    unit = tmp_path / "unit.cu"
    unit.write_text("extern __shared__ int a[];\nextern __shared__ __align__(16) char b[];\n")
    with pytest.raises(BuildError, match=r"one name for dynamic shared memory, not \['a', 'b'\]"):
        wrapper(Source.read(unit))
    unit.write_text('extern "C" __global__ void narrow(int count) {}\n')
    with pytest.raises(BuildError, match="every parameter of a kernel is 64 bits wide"):
        build(Source.read(unit))
    unit.write_text('extern "C" __global__ void same(long long) {}\n')
    with pytest.raises(ValueError, match="two kernels are called same"):
        Emulator([Source.read(unit)] * 2)
