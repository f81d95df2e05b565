"""Finds and calls the ``longma`` command."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Sequence

HOST_FAULT = 3
"""The exit status of ``longma experiment`` if the host was at fault."""
PREFIX = "longma-py-"
"""How the names of temporary folders begin."""
LEFT_AFTER_S = 60
"""A temporary folder that is younger may just be in the making."""


class Failed(RuntimeError):
    """The command failed; the text is its error output."""


class HostFault(Failed):
    """The host caused the failure: a full disk, a limit on memory or time, or a process killed from outside. A retry may succeed."""


def command() -> Path:
    """The ``longma`` command: ``$LONGMA``, the one in this package, or the first on the path.

    Raises:
        FileNotFoundError: if there is none.
    """
    named = os.environ.get("LONGMA")
    if named:
        if Path(named).is_file():
            return Path(named)
        raise FileNotFoundError(f"$LONGMA names {named}, which is no file")
    shipped = Path(__file__).parent / "bin" / "longma"
    if shipped.is_file():
        return shipped
    found = shutil.which("longma")
    if found:
        return Path(found)
    raise FileNotFoundError("there is no longma command: build it with `cargo build --release -p longma-cli` and set $LONGMA to it")


def call(arguments: Sequence[str | os.PathLike[str]], *, folder: str | os.PathLike[str] | None = None,
         stdin: str | None = None, accept: Sequence[int] = (0,)) -> str:
    """The output of ``longma ARGUMENTS``, run in ``folder``.

    Raises:
        Failed: if its exit status is not in ``accept``, or if it failed without output.
        HostFault: if the host caused the failure.
    """
    done = subprocess.run([command(), *map(os.fspath, arguments)], cwd=folder, input=stdin, capture_output=True, text=True)
    if done.returncode not in accept or (done.returncode != 0 and not done.stdout.strip()):
        message = done.stderr.strip() or done.stdout.strip() or "nothing"
        kind = HostFault if done.returncode == HOST_FAULT or done.returncode < 0 else Failed
        raise kind(f"longma {arguments[0]} {arguments[1]} ended with exit status {done.returncode}: {message}")
    return done.stdout


def call_json(arguments: Sequence[str | os.PathLike[str]], **options: Any) -> Any:
    """Like :func:`call`, for a command that prints JSON."""
    return json.loads(call([*arguments, "--format", "json"], **options))


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder. Removes folders left by killed processes first."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        # The kernel releases the lock when this process ends for any reason.
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(lock)


def _remove_if_left(folder: Path) -> None:
    """Removes a temporary folder of this user that is not locked."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        about = os.fstat(lock)
        if about.st_uid != os.getuid() or time.time() - about.st_mtime < LEFT_AFTER_S:
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        # Another process holds the lock.
        return
    finally:
        os.close(lock)
