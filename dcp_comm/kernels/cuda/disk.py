"""Compiled kernels on disk: shared by the processes of one user, and never worth an error.

What is read there is run on the GPU, so the folder has to belong to this user and be writable by
nobody else. An entry that is damaged, and a folder that is missing, read-only or not to be trusted,
cost a compilation; the last is said once.
"""

import hashlib
import importlib
import logging
import os
import stat
from functools import cache
from pathlib import Path
from typing import Any

from dcp_comm.settings import Settings

_logger = logging.getLogger("dcp_comm")
_MOST_BYTES = 256 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size


def load(key: bytes) -> bytes | None:
    """Return what was stored under a key, if it is there and whole."""
    folder = trusted_folder(Settings.from_environment().cache_dir)
    if folder is None:
        return None
    try:
        stored = _entries(folder).get(key)
    except OSError:
        return None
    if not stored or hashlib.sha256(stored[_DIGEST_BYTES:]).digest() != stored[:_DIGEST_BYTES]:
        return None
    return bytes(stored[_DIGEST_BYTES:])


def store(key: bytes, value: bytes) -> None:
    """Keep a value; readers see all of it or nothing, whoever else writes."""
    folder = trusted_folder(Settings.from_environment().cache_dir)
    if folder is None:
        return
    try:
        _entries(folder)[key] = hashlib.sha256(value).digest() + value
    except OSError as error:
        _say_once(f"compiled kernels are not kept in {folder}: {error}")


def trusted_folder(path: str) -> Path | None:
    """Return the folder of that path, made if need be; None if it cannot be used or trusted."""
    try:
        folder = Path(path).expanduser()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        link, status = folder.lstat(), folder.stat()
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        _say_once(f"compiled kernels are not kept in {path}: {error}")
        return None
    if {link.st_uid, status.st_uid} != {os.geteuid()}:
        _say_once(f"compiled kernels are not kept in {folder}: another user owns it")
        return None
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        _say_once(
            f"compiled kernels are not kept in {folder}: others may write there; "
            "make its mode 0700 or name another by DCP_COMM_CACHE_DIR"
        )
        return None
    return folder


def _entries(folder: Path) -> Any:
    made = importlib.import_module("cuda.core.utils").FileStreamProgramCache
    return made(folder, max_size_bytes=_MOST_BYTES)


@cache
def _say_once(message: str) -> None:
    _logger.warning("%s", message)
