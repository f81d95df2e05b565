"""Machines as objects: every part of a machine file is an attribute that can be read and set.

Every change is checked as by ``longma machine check``.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from . import _native


class Part(Mapping[str, Any]):
    """A part of a machine, such as a cache. Its keys are attributes and items; setting one checks the whole machine."""

    _machine: Machine
    _path: tuple[str | int, ...]

    def __init__(self, machine: Machine, path: tuple[str | int, ...]) -> None:
        object.__setattr__(self, "_machine", machine)
        object.__setattr__(self, "_path", path)

    def _content(self) -> dict[str, Any]:
        content: Any = self._machine._parts
        for step in self._path:
            content = content[step]
        return content

    def __getitem__(self, key: str) -> Any:
        return _wrap(self._machine, (*self._path, key), self._content()[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self._machine._change((*self._path, key), value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self._content())
            raise AttributeError(f"{self._where()} has no `{name}`; it has {known}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._content()]

    def __repr__(self) -> str:
        return f"<{self._where()}: {json.dumps(self._content())}>"

    def _where(self) -> str:
        return "machine" + "".join(f".{step}" for step in self._path)


def _wrap(machine: Machine, path: tuple[str | int, ...], value: Any) -> Any:
    if isinstance(value, dict):
        return Part(machine, path)
    if isinstance(value, list):
        return [_wrap(machine, (*path, index), item) for index, item in enumerate(value)]
    return value


class Machine(Part):
    """A machine file: ``Machine("loongson-3a5000")``, or the path of one.

    >>> machine = Machine("loongson-3a5000")
    >>> machine.caches.l3.size
    '16 MiB'
    >>> machine.caches.l3.size = "8 MiB"
    >>> machine["caches.l3.size"]
    '8 MiB'

    Raises:
        FileNotFoundError: if there is no such machine or file.
        ValueError: if the file has errors; the text says where and what.
    """

    _parts: dict[str, Any]

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self._begin(json.loads(_native.open_machine(os.fspath(name))))

    def _begin(self, parts: dict[str, Any]) -> None:
        super().__init__(self, ())
        object.__setattr__(self, "_parts", parts)

    @classmethod
    def _of(cls, parts: dict[str, Any]) -> Machine:
        machine = cls.__new__(cls)
        machine._begin(parts)
        return machine

    @classmethod
    def parse(cls, text: str) -> Machine:
        """Parses the text of a machine file."""
        return cls._of(json.loads(_native.parse_machine(text)))

    @staticmethod
    def names() -> list[str]:
        """The names of the built-in machines."""
        return _native.machine_names()

    def __getitem__(self, key: str) -> Any:
        value: Any = self._parts
        path = _steps(key)
        for step in path:
            value = value[step]
        return _wrap(self, path, value)

    def __setitem__(self, key: str, value: Any) -> None:
        self._change(_steps(key), value)

    def _change(self, path: tuple[str | int, ...], value: Any) -> None:
        self._change_all([(path, value)])

    def _change_all(self, changes: list[tuple[tuple[str | int, ...], Any]]) -> None:
        parts = copy.deepcopy(self._parts)
        for path, value in changes:
            place: Any = parts
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = value
        # An invalid machine raises an error and leaves this one unchanged.
        _native.machine_toml(json.dumps(parts))
        object.__setattr__(self, "_parts", parts)

    def edit(self, changes: Mapping[str, Any]) -> Machine:
        """A copy with other values at some paths, such as ``{"caches.l3.size": "8 MiB"}``, checked together."""
        changed = Machine._of(copy.deepcopy(self._parts))
        changed._change_all([(_steps(path), value) for path, value in changes.items()])
        return changed

    def to_toml(self) -> str:
        """The machine file with all defaults."""
        return _native.machine_toml(json.dumps(self._parts))

    def to_dict(self) -> dict[str, Any]:
        """The parts as plain dictionaries and lists."""
        return copy.deepcopy(self._parts)

    def layout(self) -> dict[str, Any]:
        """Every host with all its cores, caches and NUMA nodes."""
        return json.loads(_native.machine_layout(json.dumps(self._parts)))

    def draw(self, width: int = 100) -> str:
        """The machine as a text drawing, ``width`` columns wide."""
        return _native.draw_machine(json.dumps(self._parts), width, False)

    def _repr_html_(self) -> str:
        return _native.draw_machine(json.dumps(self._parts), 140, True)

    def __repr__(self) -> str:
        return f"<Machine {self._parts['name']}: {self._parts['title']}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Machine) and self._parts == other._parts

    __hash__ = None  # type: ignore[assignment]


def _steps(path: str) -> tuple[str | int, ...]:
    return tuple(int(step) if step.isdigit() else step for step in path.split("."))
