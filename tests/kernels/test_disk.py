"""Compiled kernels on disk: kept if the folder can be trusted, and never an error."""

import logging
import multiprocessing
import os
from pathlib import Path

import pytest

from dcp_comm.kernels.cuda import disk

pytest.importorskip("cuda.core.utils")

KEY, VALUE = b"key" * 10, b"\x7fELF" + bytes(range(256)) * 64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, not made yet."""
    folder = tmp_path / "several" / "cache"
    monkeypatch.setenv("DCP_COMM_CACHE_DIR", str(folder))
    disk._say_once.cache_clear()
    return folder


def entry(folder: Path) -> Path:
    """The file that holds the one entry."""
    (file,) = (path for path in (folder / "entries").rglob("*") if path.is_file())
    return file


def test_what_is_stored_is_loaded(folder: Path) -> None:
    assert disk.load(KEY) is None
    disk.store(KEY, VALUE)
    assert disk.load(KEY) == VALUE
    assert disk.load(KEY + b"other") is None


def test_the_folder_is_this_users_alone(folder: Path) -> None:
    former = os.umask(0)
    try:
        disk.store(KEY, VALUE)
    finally:
        os.umask(former)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damage", [b"", b"short", VALUE, b"\0" * 5000])
def test_a_damaged_entry_is_no_entry_and_is_replaced(folder: Path, damage: bytes) -> None:
    disk.store(KEY, VALUE)
    entry(folder).write_bytes(damage)
    assert disk.load(KEY) is None
    disk.store(KEY, VALUE)
    assert disk.load(KEY) == VALUE


def test_one_bit_of_damage_is_seen(folder: Path) -> None:
    disk.store(KEY, VALUE)
    whole = bytearray(entry(folder).read_bytes())
    whole[len(whole) // 2] ^= 1
    entry(folder).write_bytes(whole)
    assert disk.load(KEY) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722])
def test_a_folder_that_others_may_write_is_not_used(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk.store(KEY, VALUE)
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "dcp_comm"):
        assert disk.load(KEY) is None
        disk.store(KEY, VALUE)
        assert disk.load(KEY) is None
    (said,) = caplog.messages
    assert f"not kept in {folder}: others may write there" in said
    folder.chmod(0o700)
    assert disk.load(KEY) == VALUE


def test_another_users_folder_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk.store(KEY, VALUE)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with caplog.at_level(logging.WARNING, "dcp_comm"):
        assert disk.load(KEY) is None
    assert "another user owns it" in caplog.text


def test_a_folder_that_cannot_be_made_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk._say_once.cache_clear()
    (tmp_path / "file").touch()
    monkeypatch.setenv("DCP_COMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    disk.store(KEY, VALUE)
    assert disk.load(KEY) is None
    assert len(caplog.messages) == 1


def test_no_home_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("DCP_COMM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    disk.store(KEY, VALUE)
    assert disk.load(KEY) is None


def test_entries_that_cannot_be_read_or_written_cost_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnly:
        def get(self, key: bytes) -> bytes:
            raise PermissionError(13, "Permission denied")

        def __setitem__(self, key: bytes, value: bytes) -> None:
            raise OSError(30, "Read-only file system")

    monkeypatch.setattr(disk, "_entries", lambda folder: ReadOnly())
    disk.store(KEY, VALUE)
    disk.store(KEY, VALUE)
    assert disk.load(KEY) is None
    (said,) = caplog.messages
    assert "Read-only file system" in said


def _write_and_read(folder: str, rounds: int) -> None:
    os.environ["DCP_COMM_CACHE_DIR"] = folder
    for _ in range(rounds):
        disk.store(KEY, VALUE)
        assert disk.load(KEY) in {VALUE, None}


def test_processes_may_write_at_once(folder: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_write_and_read, args=(str(folder), 30)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert disk.load(KEY) == VALUE
