"""Results as tables: Arrow, and from it pandas and polars. The command writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.parquet

if TYPE_CHECKING:
    import pandas
    import polars


class Table:
    """The results of an experiment: one row per point, sorted by key."""

    arrow: pyarrow.Table
    """The table itself."""

    def __init__(self, arrow: pyarrow.Table) -> None:
        self.arrow = arrow

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Table:
        """Reads a Parquet file written by the command."""
        # Read the whole file: another run of the experiment replaces it.
        with open(path, "rb") as file:
            return cls(pyarrow.parquet.read_table(pyarrow.BufferReader(file.read())))

    def pandas(self) -> pandas.DataFrame:
        """The table as a pandas data frame."""
        return self.arrow.to_pandas()

    def polars(self) -> polars.DataFrame:
        """The table as a polars data frame."""
        import polars

        frame = polars.from_arrow(self.arrow)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def rows(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        return self.arrow.to_pylist()

    def units(self) -> dict[str, str]:
        """The units of the metrics, by column."""
        metadata = self.arrow.schema.metadata or {}
        return {key.decode()[5:]: unit.decode() for key, unit in metadata.items() if key.startswith(b"unit:")}

    def __len__(self) -> int:
        return self.arrow.num_rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.arrow.equals(other.arrow)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Table of {len(self)} points: {', '.join(self.arrow.column_names)}>"

    def _repr_html_(self) -> str:
        return self.pandas().to_html(index=False)
