"""Experiments: opened, changed, run, compared and reported through the ``longma`` command.

The book's chapter on experiments describes the file format.
"""

from __future__ import annotations

import copy
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow

from .command import Failed, call, call_json, scratch
from .machine import Machine
from .table import Table


@dataclass(frozen=True)
class Point:
    """One run of an experiment."""

    key: str
    """The key of its result in the store."""
    state: str
    """``done``, ``failed`` or ``missing``."""
    machine: str | None
    """The machine's name."""
    parameters: dict[str, Any]
    """Every parameter, defaults included."""


def experiments(folder: str | os.PathLike[str] | None = None) -> list[dict[str, Any]]:
    """The experiments in ``folder`` (default: the nearest folder ``experiments``): name, file, title, number of points."""
    where = [] if folder is None else ["--folder", folder]
    return call_json(["experiment", "list", *where], accept=(0, 2))


class Experiment:
    """An experiment file. Changes to its content do not change the file.

    Args:
        file: the path of an experiment file, or the name of one in the nearest folder ``experiments``.

    Raises:
        FileNotFoundError: if there is no such experiment.
        Failed: if the file has errors; the text lists them with their positions.
    """

    content: dict[str, Any]
    """The content of the file."""

    def __init__(self, file: str | os.PathLike[str]) -> None:
        path = Path(file)
        if path.suffix != ".toml":
            known = {entry["name"]: entry["file"] for entry in experiments()}
            if os.fspath(file) not in known:
                raise FileNotFoundError(f"there is no experiment `{file}`; there are: {', '.join(known)}")
            path = Path(known[os.fspath(file)])
        self._folder = path.resolve().parent
        self._machines: dict[str, str] = {}
        if not path.is_file():
            raise FileNotFoundError(f"there is no experiment file {path}")
        self.content = tomllib.loads(path.read_text())
        self._call("check", "--file-only")

    @property
    def name(self) -> str:
        """The experiment's short name."""
        return self.content["name"]

    @property
    def title(self) -> str:
        """The experiment's title."""
        return self.content["title"]

    def _copy(self) -> Experiment:
        other = copy.copy(self)
        other.content, other._machines = copy.deepcopy(self.content), dict(self._machines)
        return other

    def with_machines(self, machines: Sequence[Machine | str]) -> Experiment:
        """A copy that runs on these machines, also in its quick form.

        Raises:
            Failed: if the experiment cannot run on one of them; the text says why.
        """
        other = self._copy()
        other.content.get("quick", {}).pop("machines", None)
        names = []
        for machine in machines:
            if isinstance(machine, Machine):
                name = f"./{machine['name']}.toml"
                count = 2
                while name in names:
                    name = f"./{machine['name']}-{count}.toml"
                    count += 1
                other._machines[name] = machine.to_toml()
                names.append(name)
            else:
                names.append(machine)
        other.content["machines"] = names
        other.check()
        return other

    def with_parameters(self, **parameters: Any) -> Experiment:
        """A copy with other values of parameters that are not swept."""
        other = self._copy()
        other.content.setdefault("parameters", {}).update(parameters)
        return other

    def with_sweep(self, sweep: Mapping[str, Sequence[Any]]) -> Experiment:
        """A copy that sweeps over these values; other parameters stay as they are."""
        other = self._copy()
        other.content.setdefault("sweep", {}).update({name: list(values) for name, values in sweep.items()})
        return other

    def _call(self, verb: str, *arguments: str | os.PathLike[str], **options: Any) -> str:
        """Runs ``longma experiment VERB`` on this content."""
        with scratch() as folder:
            file = folder / f"{self.name}.toml"
            content, start = self.content, self._folder
            if self._machines:
                content = self._moved(folder)
                start = folder
            file.write_text(_toml(content))
            return call(["experiment", verb, file, "--paths-from", start, *arguments], **options)

    def _moved(self, folder: Path) -> dict[str, Any]:
        """The content with paths relative to ``folder``, which holds changed machines."""
        content = copy.deepcopy(self.content)
        (folder / "files").symlink_to(self._folder)
        for name, text in self._machines.items():
            (folder / name).write_text(text)
        def moved(name: str) -> str:
            is_path = "/" in name or "." in name
            return f"files/{name}" if is_path and name not in self._machines else name

        content["machines"] = [moved(name) for name in content["machines"]]
        for mechanism in content.get("explain", {}).get("mechanisms", {}).values():
            for settings in (mechanism.get("off", {}), mechanism.get("on", {})):
                if "machine" in settings:
                    settings["machine"] = moved(settings["machine"])
        # Only the workload `program` has paths, relative to the experiment's folder.
        if content["workload"] != "program":
            return content
        parameters = content.setdefault("parameters", {})
        parameters["folder"] = f"files/{parameters.get('folder', '')}"
        of_quick = content.get("quick", {}).get("parameters", {})
        if "folder" in of_quick:
            of_quick["folder"] = f"files/{of_quick['folder']}"
        return content

    def check(self) -> None:
        """Checks the content and sets up every point without running it: machine, devices, program and metrics.

        Raises:
            Failed: if there are errors; the text lists them with their positions.
        """
        self._call("check")

    def metrics(self, *, quick: bool = False) -> dict[str, str]:
        """The metrics that the points can measure, with units; ``[metrics]`` selects some of them."""
        answer = json.loads(self._call("metrics", "--format", "json", *_form(quick)))
        return {entry["name"]: entry["unit"] for entry in answer}

    def points(self, *, quick: bool = False, store: str | os.PathLike[str] = "results") -> list[Point]:
        """Every point with its state."""
        answer = self._call("points", "--store", os.path.abspath(store), "--format", "json", *_form(quick))
        return [Point(entry["key"], entry["state"], entry["machine"], entry["parameters"]) for entry in json.loads(answer)]

    def run(self, *, quick: bool = False, store: str | os.PathLike[str] = "results", jobs: int | None = None,
            retry_failed: bool = False) -> Table:
        """Runs the points that have no result yet, and returns the table of all points.

        Failed points are in the table with their error and raise nothing.

        Raises:
            HostFault: if the host caused points to fail: a full disk, a limit, a run killed from outside. Results are stored, and another
                call runs only the missing points.
            Failed: if the experiment cannot run, its table cannot be written, or two runs of a point gave different results.
        """
        how = [*_form(quick), *(["--jobs", str(jobs)] if jobs else []), *(["--retry-failed"] if retry_failed else [])]
        store = os.path.abspath(store)
        answer = json.loads(self._call("run", "--store", store, "--format", "json", *how, accept=(0, 1)))
        if answer[0].get("contradict"):
            raise Failed(f"results in {store} contradict each other: `longma experiment run` says which; move the wrong ones away")
        table = answer[0]["table"]
        if table is None:
            raise Failed(f"the results are stored, but their table cannot be written to {store}, and one there may be of another time")
        return Table.read(table)

    def compare(self, *, quick: bool = False, store: str | os.PathLike[str] = "results") -> Table:
        """Every published value with the measured one."""
        result = self._call("compare", "--store", os.path.abspath(store), "--format", "json", *_form(quick), accept=(0, 1))
        return Table(pyarrow.Table.from_pylist(json.loads(result)[0]["values"]))

    def report(self, output: str | os.PathLike[str] = "report.html", *, quick: bool = False,
               store: str | os.PathLike[str] = "results") -> Path:
        """Writes the results as an HTML page with charts."""
        self._call("report", "--store", os.path.abspath(store), "--output", os.path.abspath(output), *_form(quick))
        return Path(output)

    def run_point(self, key: str, *, quick: bool = False) -> str:
        """Runs one point and returns its record, a line for :meth:`merge`. Stores nothing; workers use it."""
        with scratch() as store:
            return self._call("run", "--store", store, "--only", key, "--records", "--jobs", "1", *_form(quick))

    def merge(self, records: str, *, store: str | os.PathLike[str] = "results") -> None:
        """Adds records to a store."""
        call(["experiment", "merge", "-", "--store", os.path.abspath(store)], stdin=records)

    def __repr__(self) -> str:
        return f"<Experiment {self.name}: {self.title}>"


def _form(quick: bool) -> list[str]:
    return ["--quick"] if quick else []


def _toml(content: Mapping[str, Any]) -> str:
    """Formats content as TOML: top-level values, and all else inline."""
    return "".join(f"{_key(name)} = {_inline(value)}\n" for name, value in content.items())


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_inline(inner)}" for name, inner in value.items()) + " }"
    return "[" + ", ".join(map(_inline, value)) + "]"
