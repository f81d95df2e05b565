"""Runs Linux programs with the ``longma`` command. A program is a path; PATH is not searched."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .command import Failed, HostFault, command, scratch
from .machine import Machine


LEVELS = ("functional", "cache", "timing")
"""How much can be modelled."""
HOST_FAULT = 124
"""The exit status of ``longma run`` if the host is short of something."""
HOST_FAULT_WORDS = "this host is at fault, not the program"
"""What it then says, since a program may end with any status."""


@dataclass(frozen=True)
class Run:
    """The result of a run: how the program ended, its output and its statistics."""

    status: int
    """The exit status; negative if a signal ended it."""
    output: str
    """What it printed."""
    errors: str
    """Standard error of the program and the command."""
    statistics: dict[str, Any]
    """What was counted, by name."""


def run(program: str | os.PathLike[str], *arguments: str, machine: Machine | str | None = None, level: str = "functional",
        environment: Mapping[str, str] | None = None, stdin: str | None = None, timeout: float | None = None) -> Run:
    """Runs a program on ``machine`` to its end.

    Args:
        program: the path of a Linux program.
        arguments: its arguments.
        machine: a machine, its name, or a machine file [default: LA464 cores].
        level: how much is modelled: ``functional``, ``cache`` or ``timing``.
        environment: its whole environment [default: this process's].
        stdin: its standard input.
        timeout: seconds after which it is killed.

    Raises:
        subprocess.TimeoutExpired: if it took longer than ``timeout``.
        ValueError: if there is no such level.
        HostFault: if the host lacks a resource that the run needs.
        Failed: if the program succeeded but its statistics cannot be read.
    """
    if level not in LEVELS:
        raise ValueError(f"there is no level `{level}`; there are: {', '.join(LEVELS)}")
    with scratch() as folder:
        words = [os.fspath(command()), "run"]
        statistics = folder / "statistics.json"
        if level == "functional":
            words += ["--stats", "--format", "json"]
        else:
            words += ["--level", level, "--quiet", "--stats-out", os.fspath(statistics)]
        if machine is not None:
            words += ["--machine", _file(machine, folder)]
        words += ["--", os.fspath(program), *arguments]
        done = subprocess.run(words, env=environment, input=stdin, capture_output=True, text=True, timeout=timeout, errors="replace")
        counted = _last_object(done.stderr) if level == "functional" else _read(statistics)
    if done.returncode == HOST_FAULT and HOST_FAULT_WORDS in done.stderr:
        raise HostFault(done.stderr.strip())
    if done.returncode == 0 and not counted and level != "functional":
        raise Failed(f"the run's statistics cannot be read: {done.stderr.strip() or 'no message'}")
    return Run(done.returncode, done.stdout, done.stderr, counted)


def _read(statistics: Path) -> dict[str, Any]:
    """Reads the statistics; empty if the run was not set up or did not finish."""
    try:
        return json.loads(statistics.read_text())
    except (FileNotFoundError, ValueError):
        return {}


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
