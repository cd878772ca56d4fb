"""The CUDA C++ sources: one translation unit a ``.cu``, the headers it includes, its kernels.

A kernel is ``extern "C" __global__ void [__launch_bounds__(N)] name(parameters)`` and each of its
parameters is 64 bits wide: a pointer or a ``long long``. No standard header and none of CUDA's is
included, so that what is compiled depends on these files alone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_ONCE = re.compile(r"^\s*#\s*pragma\s+once\s*$", re.MULTILINE)
_BOUNDS = r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)"
_KERNEL = re.compile(rf'extern\s+"C"\s+__global__\s+void\s+(?:{_BOUNDS}\s+)?(\w+)\s*\(')


@dataclass(frozen=True)
class Source:
    """One translation unit.

    Attributes:
        path: The ``.cu`` file; what it includes lies beside it.
        text: What it says.
        headers: (name, text) of every file that it includes, directly or not, by name.
        kernels: The names of the kernels that it defines, in their order.
    """

    path: Path
    text: str
    headers: tuple[tuple[str, str], ...]
    kernels: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Read a ``.cu`` file and all that it includes.

        Raises:
            FileNotFoundError: It, or a header that it includes, does not exist.
        """
        text = path.read_text()
        headers = dict(_included(path.parent, text))
        return cls(path, text, tuple(sorted(headers.items())), tuple(_KERNEL.findall(text)))

    def unit(self) -> str:
        """Return all of it as one text: the headers where they are first included.

        It holds no path, so the same sources make the same text wherever they lie.
        """
        return "".join(_flat(self.path.name, self.text, dict(self.headers), set()))


@cache
def read_all(folder: Path = PACKAGE) -> tuple[Source, ...]:
    """Return every translation unit of a folder, by name; the package's own by default."""
    return tuple(Source.read(path) for path in sorted(folder.glob("*.cu")))


def _included(
    folder: Path, text: str, seen: frozenset[str] = frozenset()
) -> Iterator[tuple[str, str]]:
    for name in _INCLUDE.findall(text):
        if name not in seen:
            header = (folder / name).read_text()
            yield name, header
            yield from _included(folder, header, seen | {name})


def _flat(name: str, text: str, headers: dict[str, str], done: set[str]) -> Iterator[str]:
    yield f'#line 1 "{name}"\n'
    for number, line in enumerate(text.splitlines(), 1):
        include = _INCLUDE.match(line)
        if include is None:
            yield f"{line}\n"
            continue
        if include[1] not in done:
            done.add(include[1])
            yield from _flat(include[1], _ONCE.sub("", headers[include[1]]), headers, done)
        yield f'#line {number + 1} "{name}"\n'
