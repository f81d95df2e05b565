"""Crash-safe ordered maps of bytes in files, as Python mappings: transactions, snapshots, iterators, and numpy arrays.

A change is durable when the call returns, and iterators see one version of the map while other threads change it. The files are those
of ``longma zoned`` and of the crate ``longma-zoned``.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from collections.abc import ItemsView as _ItemsView
from collections.abc import KeysView as _KeysView
from collections.abc import ValuesView as _ValuesView
from typing import TYPE_CHECKING, Any, TypeVar

from . import _native
from ._native import Conflict, StoreError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Conflict", "Snapshot", "Store", "StoreError", "Transaction", "open"]

_Result = TypeVar("_Result")
# Changes in one batch of `clear`.
_BATCH = 10_000
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def _bytes(size: int | str, what: str) -> int:
    if isinstance(size, str) and (parts := re.fullmatch(r"(\d+) ?([KMGT]iB|B)", size)):
        count = int(parts[1]) * _UNITS[parts[2]]
    elif isinstance(size, int) and not isinstance(size, bool):
        count = size
    else:
        raise ValueError(f"{what}: {size!r} is not a size; write it as 268435456 or \"256 MiB\" ({', '.join(_UNITS)})")
    if not 0 < count < 1 << 63:
        raise ValueError(f"{what}: {size!r} is not a possible size")
    return count


def _key(key: Any) -> bytes:
    if isinstance(key, bytes):
        return key
    if isinstance(key, (bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"keys and values are bytes, not {type(key).__name__}; encode it, such as with str.encode()")


class _Items(_ItemsView[bytes, bytes]):
    _mapping: _Reader

    def __contains__(self, item: object) -> bool:
        return isinstance(item, tuple) and len(item) == 2 and super().__contains__(item)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping.range()

    def __reversed__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping.range(reverse=True)


class _Keys(_KeysView[bytes]):
    _mapping: _Reader

    def __reversed__(self) -> Iterator[bytes]:
        return reversed(self._mapping)


class _Values(_ValuesView[bytes]):
    _mapping: _Reader

    def __contains__(self, value: object) -> bool:
        return any(value == other for other in self)

    def __iter__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.range())

    def __reversed__(self) -> Iterator[bytes]:
        return (value for _, value in self._mapping.range(reverse=True))


class _Reader(Mapping[bytes, bytes]):
    """What stores, snapshots and transactions have in common."""

    _native: Any

    def _pages(self) -> Any:
        """The object whose pages an iterator reads."""
        return self._native

    def __getitem__(self, key: bytes) -> bytes:
        value = self._native.get(_key(key))
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._native.contains(_key(key))

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.range())

    def __reversed__(self) -> Iterator[bytes]:
        return (key for key, _ in self.range(reverse=True))

    def range(self, first: bytes | None = None, end: bytes | None = None, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The records from key ``first`` (included) to ``end`` (excluded) in key order, or in the reverse order."""
        first, end = (None if key is None else _key(key) for key in (first, end))
        return self._records(self._pages(), first, end, reverse)

    @staticmethod
    def _records(pages: Any, first: bytes | None, end: bytes | None, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        # A transaction conflicts with changes of what it has read, so pages begin small.
        excluded, limit = False, 1
        while records := pages.page((first, excluded, end), reverse, limit):
            yield from records
            limit = min(4 * limit, 1 << 20)
            last = records[-1][0]
            if reverse:
                end = last
            else:
                first, excluded = last, True

    def prefix(self, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """The records whose keys begin with ``prefix``."""
        prefix = _key(prefix)
        # The first key after all of them: the prefix without final bytes 255, and the last byte plus one.
        head = prefix.rstrip(b"\xff")
        end = head[:-1] + bytes([head[-1] + 1]) if head else None
        return self.range(prefix, end, reverse=reverse)

    def keys(self) -> _Keys:
        return _Keys(self)

    def items(self) -> _Items:
        return _Items(self)

    def values(self) -> _Values:
        return _Values(self)

    def close(self) -> None:
        """Ends the use. Further calls raise ValueError."""
        self._native.close()


class Snapshot(_Reader):
    """One version of a store. It stays readable while other threads change the store."""

    def __init__(self, native: _native.NativeSnapshot):
        self._native = native

    def __len__(self) -> int:
        return len(self._native)

    def arrays(
        self, keys: Any, values: Any, first: bytes | None = None, end: bytes | None = None, limit: int | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Two numpy arrays: the keys of a range, and their values. Needs numpy.

        ``keys`` and ``values`` are types of a fixed size, such as ``">u8"``, ``"S16"``, or structured ones. All keys and values of the
        range need these sizes; else ValueError is raised.
        """
        import numpy as np

        types = np.dtype(keys), np.dtype(values)
        if any(dtype.hasobject or not dtype.itemsize for dtype in types):
            raise ValueError("Python objects and types without a size cannot be stored")
        first, end = (None if key is None else _key(key) for key in (first, end))
        if limit is not None and limit < 0:
            raise ValueError(f"{limit} is not a number of records")
        limit = (1 << 63) - 1 if limit is None else min(limit, (1 << 63) - 1)
        stored = self._native.fixed((first, False, end), types[0].itemsize, types[1].itemsize, limit)
        all_keys, all_values = (np.frombuffer(part, dtype) for part, dtype in zip(stored, types))
        return all_keys, all_values

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Writes the snapshot to a new file, which is itself a store. Returns the number of records."""
        return _backup(self._native, path)

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transaction(_Reader, MutableMapping[bytes, bytes]):
    """Sees the store as it was when the transaction began, with its own changes.

    Changes become visible and durable together at :meth:`commit`, which a ``with`` block calls unless it raises. Do not change a transaction
    while you iterate over it; iterate over ``list(transaction)``.
    """

    def __init__(self, native: _native.NativeTransaction, limits: tuple[int, int]):
        self._native, self._limits = native, limits

    def __setitem__(self, key: bytes, value: bytes) -> None:
        key, value = _key(key), _key(value)
        for part, data, limit in zip(("key", "value"), (key, value), self._limits):
            if len(data) > limit:
                raise ValueError(f"the {part} of {key[:40]!r} has {len(data)} bytes; the store holds {part}s of up to {limit}")
        self._native.put(key, value)

    def __delitem__(self, key: bytes) -> None:
        if key not in self:
            raise KeyError(key)
        self._native.delete(_key(key))

    def __len__(self) -> int:
        """The number of keys; reads all of them."""
        return sum(1 for _ in self.range())

    def __bool__(self) -> bool:
        return any(True for _ in self.range())

    def clear(self) -> None:
        """Deletes all records."""
        for key in list(self):
            self._native.delete(key)

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes the last record and returns it."""
        for key, value in self.range(reverse=True):
            del self[key]
            return key, value
        raise KeyError("the store is empty")

    def commit(self) -> None:
        """Applies the changes. Raises :class:`Conflict` if another transaction changed what this one has read; nothing is changed then."""
        self._native.commit()

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.close()


class Store(_Reader, MutableMapping[bytes, bytes]):
    """A durable ordered map from bytes to bytes. Made by :func:`open`; any number of threads may use it."""

    def __init__(self, native: _native.NativeStore):
        self._native = native

    def _pages(self) -> Any:
        return self._native.snapshot()

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._native.apply([(_key(key), _key(value))])

    def __delitem__(self, key: bytes) -> None:
        if not self._native.apply([(_key(key), None)])[2]:
            raise KeyError(key)

    def __len__(self) -> int:
        return len(self._native)

    def update(self, other: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]] = (), /, **pairs: bytes) -> None:  # type: ignore[override]
        """Sets many keys as a whole: after a crash either all have their new values or none. One flush for all."""
        if pairs:
            raise TypeError("keys are bytes, so they cannot be passed by name")
        items = other.items() if isinstance(other, Mapping) else other
        self._native.apply([(_key(key), _key(value)) for key, value in items])

    def discard(self, keys: Iterable[bytes]) -> int:
        """Deletes many keys as a whole. Returns how many were present."""
        return self._native.apply([(_key(key), None) for key in keys])[2]

    def clear(self) -> None:
        """Deletes all records that are present at the call, in batches."""
        batch: list[bytes] = []
        for key in self:
            batch.append(key)
            if len(batch) == _BATCH:
                self.discard(batch)
                batch.clear()
        self.discard(batch)

    def pop(self, key: bytes, *default: Any) -> Any:
        """Removes a key and returns its value, atomically."""
        return self.transact(lambda transaction: transaction.pop(key, *default))

    def popitem(self) -> tuple[bytes, bytes]:
        """Removes the last record and returns it, atomically."""
        return self.transact(Transaction.popitem)

    def setdefault(self, key: bytes, default: bytes = b"") -> bytes:
        """Returns the value of a key, and sets it to ``default`` first if it is absent, atomically."""
        default = _key(default)
        swapped, current = self._native.compare_and_swap(_key(key), None, default)
        return default if swapped else current

    def compare_and_swap(self, key: bytes, expected: bytes | None, new: bytes | None) -> bool:
        """Sets a key to ``new`` if its value is ``expected``, atomically. None is an absent key. Returns whether it did."""
        expected, new = (None if value is None else _key(value) for value in (expected, new))
        return self._native.compare_and_swap(_key(key), expected, new)[0]

    def snapshot(self) -> Snapshot:
        """The present version of the store."""
        return Snapshot(self._native.snapshot())

    def transaction(self) -> Transaction:
        """Begins a transaction, usually in a ``with`` statement, which commits it."""
        return Transaction(self._native.transaction(), self._native.limits())

    def transact(self, work: Callable[[Transaction], _Result]) -> _Result:
        """Runs ``work`` in a transaction and commits it; runs it again after a conflict. Returns what ``work`` returns."""
        while True:
            transaction = self.transaction()
            try:
                result = work(transaction)
                transaction.commit()
                return result
            except Conflict:
                continue
            finally:
                transaction.close()

    def load(self, keys: Any, values: Any) -> int:
        """Loads numpy arrays of ascending keys and of their values, as a whole. This is faster than batches. Needs numpy.

        An array of one dimension has one element for each record, and an array of bytes (``uint8``) of two dimensions one row. Sort order is
        that of the stored bytes, so store numbers as ``">u8"`` (big-endian, unsigned). Returns the number of records.
        """
        (key_rows, key_bytes), (value_rows, value_bytes) = _rows(keys, "keys"), _rows(values, "values")
        return self._native.load(key_rows, key_bytes, value_rows, value_bytes)

    def arrays(
        self, keys: Any, values: Any, first: bytes | None = None, end: bytes | None = None, limit: int | None = None
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """As :meth:`Snapshot.arrays`."""
        with self.snapshot() as snapshot:
            return snapshot.arrays(keys, values, first, end, limit)

    def sync(self) -> None:
        """Makes all changes so far durable; needed only for a store opened with ``relaxed=True``."""
        self._native.sync()

    def checkpoint(self) -> None:
        """Writes all changes to their place, so that the next :func:`open` replays no journal."""
        self._native.checkpoint()

    def backup(self, path: str | os.PathLike[str]) -> int:
        """Writes a backup to a new file, which is itself a store, while others use this one. Returns the number of records."""
        return _backup(self._native, path)

    def limits(self) -> tuple[int, int]:
        """The maximum lengths of a key and of a value, bytes."""
        return self._native.limits()

    def statistics(self) -> dict[str, Any]:
        """Counts of records, blocks, reads and writes."""
        return json.loads(self._native.statistics())

    def close(self) -> None:
        """Writes a checkpoint and closes the file, with all iterators, snapshots and transactions.

        Raises StoreError if another thread is still in a call; the checkpoint is written then.
        """
        self._native.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rows(array: Any, what: str) -> tuple[np.ndarray[Any, Any], int]:
    """The bytes of an array, and the number of bytes in a row."""
    import numpy as np

    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"the {what} are a masked array; fill it first, such as with filled()")
    array = np.asarray(array)
    if array.dtype.hasobject or array.dtype.kind == "U":
        raise TypeError(f"the {what} are of type {array.dtype}; use numbers, bytes (\"S16\") or a structured type")
    if array.ndim == 2 and array.dtype.itemsize == 1:
        row_bytes = array.shape[1]
    elif array.ndim == 1:
        row_bytes = array.dtype.itemsize
    else:
        raise ValueError(f"the {what} have the shape {array.shape}; pass one dimension, or two of bytes")
    if not row_bytes:
        raise ValueError(f"the {what} have no bytes")
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8), row_bytes


def open(
    path: str | os.PathLike[str],
    capacity: int | str | None = None,
    *,
    read_only: bool = False,
    cache: int | str = "256 MiB",
    relaxed: bool = False,
) -> Store:
    """Opens the store in a file.

    :param capacity: the size of a new store, such as ``"1 GiB"``; the file is sparse. None only opens an existing one
    :param read_only: open for reading; other processes may do the same
    :param cache: memory for records and for changes
    :param relaxed: changes become durable at :meth:`Store.sync` instead of at each call; a power cut may lose the newest, a killed process none
    """
    size, memory = None if capacity is None else _bytes(capacity, "capacity"), _bytes(cache, "cache")
    name = _path(path)
    if not os.path.exists(name) and (capacity is None or read_only):
        raise FileNotFoundError(errno.ENOENT, "no such store; give a capacity to create it", name)
    return Store(_native.NativeStore(name, size, read_only, memory, relaxed))


def _path(path: str | os.PathLike[str]) -> str:
    name = os.fsdecode(path)
    if "\0" in name:
        raise ValueError(f"{name!r} is not a path")
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
    return name


def _backup(native: Any, path: str | os.PathLike[str]) -> int:
    name = _path(path)
    if os.path.exists(name):
        raise FileExistsError(errno.EEXIST, "a backup is written to a new file", name)
    return native.backup(name)
