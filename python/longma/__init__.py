"""Longma from Python: machines as objects, running programs, and experiments with their tables.

Machines are read, changed and checked in this process. Programs and experiments run through the ``longma`` command in separate processes,
because a guest program ends the process it runs in. :func:`longma.command` returns the command.
"""

from ._native import __version__
from .command import Failed, HostFault, command
from .experiment import Experiment, Point, experiments
from .machine import Machine, Part
from .program import Run, run
from .sweep import sweep
from .table import Table

__all__ = [
    "Experiment",
    "Failed",
    "HostFault",
    "Machine",
    "Part",
    "Point",
    "Run",
    "Table",
    "__version__",
    "command",
    "experiments",
    "run",
    "sweep",
]
