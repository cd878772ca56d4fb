"""Scratch memory that is reserved before it is used, so that a profile run sees all of it.

1. Every stage says what it needs as `BufferSpec`; ``workspace.reserve(*specs, owner=...)``
   records the sum. The specs of one call live together; over calls and owners the largest counts.
2. ``workspace.lock()`` after warm-up allocates every slot. From then on nothing grows.
3. ``views = workspace.take(*specs)`` hands out views, always from offset 0. Every take may alias
   every earlier one of the same slot: what must be alive together is taken together.

A view is contiguous, 256-byte aligned, uninitialised, apart from the other views of its take, and
never requires grad. A slot serves one stream of work (a micro-batch, a graph lane); slots share no
memory. Capture CUDA graphs after the lock only: growth before it leaves earlier views behind.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from dcp_comm.arena import Allocator, allocate, empty, torch_allocator
from dcp_comm.checks import check_int, check_name
from dcp_comm.errors import CommUsageError, WorkspaceExhausted, refusal
from dcp_comm.specs import BufferSpec, layout

__all__ = ["BufferSpec", "Workspace", "WorkspaceReport", "WorkspaceSlot"]


@dataclass(frozen=True)
class WorkspaceReport:
    """What a workspace holds, for logs and memory budgets.

    Attributes:
        device: Where the arenas lie.
        slots: Number of arenas.
        locked: Whether they are final.
        nbytes: Bytes of all slots together, reserved or allocated.
        owners: Bytes in every slot that each owner's largest reservation asks for.
    """

    device: torch.device
    slots: int
    locked: bool
    nbytes: int
    owners: Mapping[str, int]

    def __str__(self) -> str:
        state = "locked" if self.locked else "open"
        head = f"workspace on {self.device}: {self.nbytes:,} bytes, {self.slots} slot(s), {state}"
        width = max(map(len, self.owners), default=0)
        rows = (f"  {name:<{width}} {size:>18,}" for name, size in self.owners.items())
        return "\n".join((head, *rows))


class WorkspaceSlot:
    """One arena of a workspace, as `Workspace.slot` hands it out."""

    def __init__(self, label: str, book: "_Book", arena: torch.Tensor, debug: bool) -> None:
        self._arena = arena
        self._label = label
        self._book = book
        self._debug = debug
        self._held: list[tuple[int, weakref.ref[torch.Tensor]]] = []

    def __repr__(self) -> str:
        return f"<WorkspaceSlot {self._label}, {self._arena.numel():,} bytes>"

    def take(self, *specs: BufferSpec) -> tuple[torch.Tensor, ...]:
        """Return one view a spec, valid until the next take from this slot.

        Before the lock a take that does not fit grows the arena. The new arena is allocated before
        the old one is dropped, so that a failed allocation changes nothing.

        Args:
            *specs: Everything that must be alive together.

        Returns:
            Uninitialised views in the order, shapes and dtypes of ``specs``.

        Raises:
            CommArgumentError: An argument is no BufferSpec.
            WorkspaceExhausted: The workspace is locked and the specs do not fit.
            CommUsageError: ``debug`` is on and a view of an earlier take is still referenced where
                this take would lie.
        """
        offsets, need = layout("Workspace.take", specs)
        have = self._arena.numel()
        if self._book.locked and need > have:
            raise _exhausted("Workspace.take", self._book.asker(specs), need, have, self._label)
        if self._debug:
            self._check_unused(need)
        if need > have:
            self._arena = self._book.allocate(max(need, self._book.largest))
        views = tuple(map(self._view, specs, offsets))
        if self._debug:
            self._held += zip(offsets, map(weakref.ref, views), strict=True)
        return views

    def _view(self, spec: BufferSpec, offset: int) -> torch.Tensor:
        # In inference mode view(dtype) would make an inference tensor, read-only outside of it.
        with torch.inference_mode(False):
            return self._arena[offset : offset + spec.nbytes].view(spec.dtype).view(spec.shape)

    def _check_unused(self, need: int) -> None:
        """Refuse to lay ``need`` bytes over a view that somebody still holds."""
        self._held = [(offset, ref) for offset, ref in self._held if _occupies(ref())]
        over = sum(offset < need for offset, _ in self._held)
        if over:
            message = refusal(
                "Workspace.take",
                "specs",
                f"{need} bytes over {over} view(s) still referenced",
                "those views dropped",
                where=self._label,
                remedy="Take together what must be alive together",
            )
            raise CommUsageError(message)


class Workspace:
    """Equal arenas on one device, reserved by owners that use them in turn.

    Args:
        device: Where the arenas lie.
        slots: Number of arenas, one for each micro-batch or graph lane.
        debug: Refuse a take that would overwrite a view still referenced. Best effort: a view cut
            from a view is not tracked.
        allocator: ``(nbytes, device)`` to a 1-D contiguous uint8 tensor of at least ``nbytes``;
            torch's own by default. It is asked for exactly what is needed, and once more for 255
            bytes on top if what came is misaligned. What it raises passes through.

    Raises:
        CommArgumentError: ``device`` cannot be used, or ``slots`` is not a positive int.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        slots: int = 1,
        debug: bool = False,
        allocator: Allocator | None = None,
    ) -> None:
        check_int("Workspace", "slots", slots, 1)
        arena = empty(device)
        self._book = _Book(arena.device, allocator or torch_allocator)
        labels = [f"slot {index} of {slots} on {arena.device}" for index in range(slots)]
        self._slots = tuple(WorkspaceSlot(label, self._book, arena, debug) for label in labels)

    def __repr__(self) -> str:
        return f"<{str(self.report()).splitlines()[0]}>"

    @property
    def device(self) -> torch.device:
        """Where the arenas lie."""
        return self._book.device

    @property
    def locked(self) -> bool:
        """Whether the arenas are final."""
        return self._book.locked

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together, as they are or will be once locked."""
        return len(self._slots) * self._capacity

    @property
    def _capacity(self) -> int:
        """Bytes in every slot: the largest reservation or growth so far."""
        return max(self._book.largest, *(slot._arena.numel() for slot in self._slots))

    def reserve(self, *specs: BufferSpec, owner: str = "caller") -> None:
        """Record that ``owner`` will take these specs together, in any slot.

        Reserve the worst case of every path. Further calls, by this owner or another, do not add
        up: the largest counts.

        Args:
            *specs: What one take asks for.
            owner: Who asks; shown in reports and errors.

        Raises:
            CommArgumentError: An argument is no BufferSpec, or ``owner`` is no name.
            WorkspaceExhausted: The workspace is locked and the specs do not fit.
        """
        check_name("Workspace.reserve", "owner", owner)
        _, need = layout("Workspace.reserve", specs)
        if self.locked and need > self._capacity:
            raise _exhausted("Workspace.reserve", owner, need, self._capacity, repr(self))
        self._book.record(owner, specs, need)

    def lock(self) -> None:
        """Allocate every slot at the largest size asked for so far, and end all growth.

        All slots or none: after a failed allocation nothing has changed and a retry is legal.
        Locking twice does nothing.
        """
        capacity = self._capacity
        small = [slot for slot in self._slots if slot._arena.numel() < capacity]
        arenas = [self._book.allocate(capacity) for _ in small]
        for slot, arena in zip(small, arenas, strict=True):
            slot._arena = arena
        self._book.locked = True

    def take(self, *specs: BufferSpec) -> tuple[torch.Tensor, ...]:
        """Return one view a spec from slot 0; see `WorkspaceSlot.take`."""
        return self._slots[0].take(*specs)

    def slot(self, index: int) -> WorkspaceSlot:
        """Return one slot, to take from.

        Raises:
            CommArgumentError: There is no such slot.
        """
        check_int("Workspace.slot", "index", index, 0, len(self._slots) - 1)
        return self._slots[index]

    def report(self) -> WorkspaceReport:
        """Return what is held and for whom; its ``str`` is a table."""
        owners = MappingProxyType(dict(self._book.owners))
        return WorkspaceReport(self.device, len(self._slots), self.locked, self.nbytes, owners)


class _Book:
    """What the slots of one workspace share: reservations, allocator, lock.

    Slots know it and not the workspace: with a cycle, memory that was dropped would wait for the
    garbage collector.
    """

    def __init__(self, device: torch.device, allocator: Allocator) -> None:
        self.device = device
        self.locked = False
        self.owners: dict[str, int] = {}
        self._askers: dict[tuple[str, ...], set[str]] = {}
        self._allocator = allocator

    @property
    def largest(self) -> int:
        """Bytes of the largest reservation."""
        return max(self.owners.values(), default=0)

    def record(self, owner: str, specs: tuple[BufferSpec, ...], need: int) -> None:
        """Keep the owner's largest need, and the names it asks by."""
        self.owners[owner] = max(need, self.owners.get(owner, 0))
        self._askers.setdefault(_names(specs), set()).add(owner)

    def asker(self, specs: tuple[BufferSpec, ...]) -> str:
        """Return who reserved specs of these names, or else the names."""
        names = _names(specs)
        return " or ".join(sorted(self._askers.get(names, ()))) or ", ".join(names)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return allocate(nbytes, self.device, self._allocator)


def _names(specs: tuple[BufferSpec, ...]) -> tuple[str, ...]:
    return tuple(spec.name for spec in specs)


def _occupies(view: torch.Tensor | None) -> bool:
    return view is not None and view.numel() > 0


def _exhausted(operation: str, owner: str, need: int, have: int, where: str) -> WorkspaceExhausted:
    got, limit = f"need of {need} bytes", f"at most the {have} bytes there are"
    remedy = "Reserve the worst case of every path before lock()"
    return WorkspaceExhausted(refusal(operation, owner, got, limit, where=where, remedy=remedy))
