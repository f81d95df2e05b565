"""The ``longma`` command: where it is, and how it is called.

Not what it does: that is the command's own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Sequence


class Failed(RuntimeError):
    """The command could not do what it was asked; the text is what it said."""


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
    """What ``longma ARGUMENTS`` prints, run in ``folder``.

    Raises:
        Failed: if its exit status is none of ``accept``.
    """
    done = subprocess.run([command(), *map(os.fspath, arguments)], cwd=folder, input=stdin, capture_output=True, text=True)
    if done.returncode not in accept:
        said = done.stderr.strip() or done.stdout.strip() or "nothing"
        raise Failed(f"longma {arguments[0]} {arguments[1]} ended with exit status {done.returncode}: {said}")
    return done.stdout


def call_json(arguments: Sequence[str | os.PathLike[str]], **options: Any) -> Any:
    """As :func:`call`, for a command that prints JSON."""
    return json.loads(call([*arguments, "--format", "json"], **options))
