"""Runs the points of a campaign on a Dask cluster. Dask schedules them and handles dying workers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from .experiment import Experiment
from .table import Table

if TYPE_CHECKING:
    from distributed import Client

MERGE_EVERY = 64
"""Maximum number of points after which records are stored."""

MERGE_AFTER = 2.0
"""Seconds after which the next record is stored with those before it: what a killed client loses."""


def sweep(experiment: Experiment, client: Client | None = None, *, quick: bool = False,
          store: str | os.PathLike[str] = "results") -> Table:
    """Runs the points of ``experiment`` that have no result yet on the workers of ``client``, and returns the table of all points.

    Each point runs with its worker's ``longma`` command; the experiment's programs must have the same paths there. If a worker dies,
    its points
    run again elsewhere. Results are stored as they arrive, so that an interrupted sweep continues.

    Args:
        experiment: the experiment.
        client: a client of the cluster; without one, the points run here.
        quick: the quick form.
        store: the folder of results, on this side.
    """
    if client is None:
        return experiment.run(quick=quick, store=store)
    from distributed import as_completed

    missing = [point.key for point in experiment.points(quick=quick, store=store) if point.state == "missing"]
    missing = list(dict.fromkeys(missing))
    # A point is identified by its key. A worker may die many times before a point is considered at fault.
    futures = client.map(_run_point, missing, experiment=experiment, quick=quick, key=[f"longma-{key}" for key in missing],
                         retries=10, pure=True)
    records: list[str] = []
    merged = time.monotonic()
    try:
        for _, record in as_completed(futures, with_results=True):
            records.append(record)
            if len(records) >= MERGE_EVERY or time.monotonic() - merged >= MERGE_AFTER:
                experiment.merge("".join(records), store=store)
                records.clear()
                merged = time.monotonic()
    finally:
        if records:
            experiment.merge("".join(records), store=store)
        client.cancel(futures)
    return experiment.run(quick=quick, store=store)


def _run_point(key: str, *, experiment: Experiment, quick: bool) -> str:
    return experiment.run_point(key, quick=quick)
