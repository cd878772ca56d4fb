"""Checks of plain arguments that several rooms share."""

from dcp_comm.errors import CommArgumentError, refusal


def check_int(
    operation: str, argument: str, value: object, least: int, most: int = 2**31 - 1
) -> None:
    """Refuse what is not an int in ``least .. most``; True and 1.0 are not ints here.

    Raises:
        CommArgumentError: ``value`` is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        need, remedy = f"an int in {least} .. {most}", "Pass a plain Python int, no bool or float"
        raise CommArgumentError(refusal(operation, argument, repr(value), need, remedy=remedy))


def check_name(operation: str, argument: str, value: object) -> None:
    """Refuse what is not a non-empty str.

    Raises:
        CommArgumentError: ``value`` is something else.
    """
    if not isinstance(value, str) or not value:
        need, remedy = "a non-empty str", "Give the name that errors and reports shall show"
        raise CommArgumentError(refusal(operation, argument, repr(value), need, remedy=remedy))
