"""What the module of a command holds, and how it becomes a part of the command line."""

import argparse
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Protocol, cast


class Command(Protocol):
    """What a command's module holds; the first line of its docstring is its help."""

    __doc__: str | None
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_commands(
    parser: argparse.ArgumentParser, package: str, names: Iterable[str], level: str
) -> None:
    """Add the modules of a package as commands; arguments.LEVEL will be the chosen one's ``run``.

    Args:
        parser: Of the level above.
        package: Where the modules are.
        names: Of the modules, and of the commands.
        level: What such a command is called.
    """
    commands = parser.add_subparsers(required=True, metavar=level)
    for name in names:
        command = cast(Command, import_module(f"{package}.{name}"))
        text = (command.__doc__ or "").strip()
        wanted = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(wanted)
        wanted.set_defaults(**{level: command.run})
