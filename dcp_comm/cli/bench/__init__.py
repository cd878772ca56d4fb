"""Time collectives, whole merges and every stage of one; fit the model of costs to the times."""

import argparse

from dcp_comm.cli.command import add_commands

SUBJECTS = ("collectives", "merge", "fit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what can be timed, each with its own options."""
    add_commands(parser, __name__, SUBJECTS, "subject")


def run(arguments: argparse.Namespace) -> int:
    """Time the chosen one."""
    return int(arguments.subject(arguments))
