"""LoongArch64 Linux programs, run by the ``longma`` command.

Not a shell: a program is a path.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .command import command
from .machine import Machine


@dataclass(frozen=True)
class Run:
    """How a program ended and what it cost."""

    status: int
    """The exit status; negative if a signal ended it."""
    output: str
    """What it printed."""
    errors: str
    """What it and the command said on standard error."""
    statistics: dict[str, Any]
    """What was counted, by name."""


def run(program: str | os.PathLike[str], *arguments: str, machine: Machine | str | None = None, level: str = "functional",
        environment: Mapping[str, str] | None = None, stdin: str | None = None, timeout: float | None = None) -> Run:
    """Runs a program, with ``machine`` under it, until it ends.

    Args:
        program: the path of a LoongArch64 Linux program.
        arguments: its arguments.
        machine: a machine, its name, or a machine file; LA464 cores without it.
        level: how much is modelled: ``functional``, ``cache`` or ``timing``.
        environment: its whole environment; this process's without it.
        stdin: what it reads.
        timeout: seconds after which it is ended.

    Raises:
        subprocess.TimeoutExpired: if it took longer than ``timeout``.
    """
    with tempfile.TemporaryDirectory(prefix="longma-") as folder:
        words = [os.fspath(command()), "run", "--stats", "--format", "json"]
        statistics = Path(folder, "statistics.json")
        if level != "functional":
            words += ["--level", level, "--stats-out", os.fspath(statistics)]
        if machine is not None:
            words += ["--machine", _file(machine, Path(folder))]
        words += ["--", os.fspath(program), *arguments]
        done = subprocess.run(words, env=environment, input=stdin, capture_output=True, text=True, timeout=timeout, errors="replace")
        if statistics.exists():
            counted = json.loads(statistics.read_text())
        else:
            counted = _last_object(done.stderr)
    return Run(done.returncode, done.stdout, done.stderr, counted)


def _file(machine: Machine | str, folder: Path) -> str:
    if not isinstance(machine, Machine):
        return machine
    path = folder / "machine.toml"
    path.write_text(machine.to_toml())
    return os.fspath(path)


def _last_object(text: str) -> dict[str, Any]:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return {}
