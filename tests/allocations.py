"""Counting what torch operations allocate, in the thread that runs them."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Most bytes that were alive at once in memory which operations had allocated.

    Modes of torch are thread-local: enter it in the function of each rank.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {each.data_ptr() for each in storages((args, kwargs))}
        for storage in storages(result):
            if storage.data_ptr() not in given | {0}:
                self._alive[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {p: each for p, each in self._alive.items() if not each[0].expired()}
        self.peak = max(self.peak, sum(nbytes for _, nbytes in self._alive.values()))
        return result


def storages(tree: Any) -> list[torch.UntypedStorage]:
    """The memory of all tensors in a tree."""
    tensors = (each for each in tree_leaves(tree) if isinstance(each, torch.Tensor))
    return [tensor.untyped_storage() for tensor in tensors]
