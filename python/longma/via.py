"""Publish and subscribe between processes with numpy arrays, without copies; needs numpy.

A publisher writes each message in place, in memory that all subscribers map read-only. Topics are shared with programs in Rust
(``longma-pubsub``): the types ``u8`` to ``f64`` there are numpy's, and other types are structured with a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from . import _native
from ._native import PublisherDied, TopicClosed

__all__ = ["Publisher", "PublisherDied", "Sample", "Subscriber", "Topic", "TopicClosed", "topics"]

# The names of numpy's types in Rust.
_NAMES = {np.dtype(f"{name[0]}{int(name[1:]) // 8}"): name for name in "u8 u16 u32 u64 i8 i16 i32 i64 f32 f64".split()}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


class Topic(NamedTuple):
    """A topic of this user. The numbers are None if its publisher was killed or does not answer."""

    name: str
    type: str | None
    process: int | None
    published: int | None
    subscribers: int | None


def topics(folder: str | os.PathLike[str] | None = None) -> list[Topic]:
    """The topics of this user, or of another folder."""
    return [Topic(name, *(state or (None, None, None, None))) for name, state in _native.list_topics(folder)]


def _name_of(dtype: np.dtype[Any], name: str | None) -> str:
    if name is None:
        name = _NAMES.get(dtype)
    if name is None:
        raise ValueError(f"{dtype} has no name in other languages; pass one, such as name=\"robot.Position\"")
    return name


class Publisher:
    """Publishes messages of a numpy type. The topic exists until :meth:`close`, or until the process ends.

    :param max_elements: the maximum length of a message; None if each message is a single element
    :param depth: the number of messages by which a subscriber can be behind
    :param history: the number of messages that a late subscriber can get
    :param block: False overwrites the oldest message; True waits until all subscribers have received it
    """

    def __init__(
        self,
        topic: str,
        dtype: Any,
        *,
        name: str | None = None,
        max_elements: int | None = None,
        depth: int = 16,
        history: int = 0,
        block: bool = False,
        max_subscribers: int = 8,
        max_samples: int = 4,
        folder: str | os.PathLike[str] | None = None,
    ):
        self.topic, self.dtype, self._is_slice = topic, np.dtype(dtype), max_elements is not None
        if self.dtype.hasobject:
            raise ValueError(f"{self.dtype} has Python objects, which other processes cannot read")
        size, alignment = self.dtype.itemsize, self.dtype.alignment
        self._native = _native.NativePublisher(
            topic, _name_of(self.dtype, name), size, alignment, max_elements, depth, history, block, max_subscribers, max_samples, folder
        )

    @contextmanager
    def loan(self, elements: int = 1, timeout: float | None = None) -> Iterator[np.ndarray[Any, Any]]:
        """An array in the topic's memory, which is published at the end of the ``with`` block, and given back if it raises.

        What the array contains at first is undefined. It is read-only afterwards.

        :param timeout: seconds to wait for room in a topic with ``block``; None waits without limit
        """
        loan = self._native.loan(elements, timeout)
        array = np.frombuffer(loan, self.dtype) if elements else np.empty(0, self.dtype)
        try:
            yield array
        except BaseException:
            loan.cancel()
            raise
        finally:
            array.flags.writeable = False
        loan.publish()

    def publish(self, message: Any, timeout: float | None = None) -> None:
        """Copies a message, an array or a scalar, into the topic."""
        array = np.asarray(message, self.dtype)
        if array.ndim != (1 if self._is_slice else 0) and array.shape != (1,):
            raise ValueError(f"a message of shape {array.shape}; the topic carries {'arrays of one dimension' if self._is_slice else 'single elements'}")
        with self.loan(array.size, timeout) as loaned:
            loaned[:] = array

    @property
    def published(self) -> int:
        """The number of messages published so far."""
        return self._native.published

    @property
    def subscribers(self) -> int:
        """The number of subscribers."""
        return self._native.subscribers

    def close(self) -> None:
        """Ends the topic. Subscribers can still receive what was published."""
        self._native.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sample:
    """A received message. Its memory is not overwritten before :meth:`release`, or before the last array of it is gone."""

    def __init__(self, native: _native.Sample, dtype: np.dtype[Any]):
        self._native, self._dtype = native, dtype

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """A read-only array in the topic's memory. Copy it to keep it: a topic permits a few samples at once."""
        # `frombuffer` refuses an empty buffer.
        array = np.frombuffer(self._native, self._dtype) if self._native.elements else np.empty(0, self._dtype)
        array.flags.writeable = False
        return array

    @property
    def number(self) -> int:
        """The number of the message: the first of a topic has 0."""
        return self._native.number

    @property
    def lost(self) -> int:
        """The number of messages that were lost directly before this one."""
        return self._native.lost

    @property
    def is_intact(self) -> bool:
        """Whether all that was read until now belongs to this message. Only a publisher that misbehaves makes it False."""
        return self._native.is_intact

    def release(self) -> None:
        """Lets the publisher use the memory again. Raises BufferError while an array of it exists."""
        self._native.release()

    def __len__(self) -> int:
        return self._native.elements

class Subscriber:
    """Receives the messages of a topic, also in a ``for`` loop, which ends when the publisher closes the topic.

    :param dtype: the expected type; None takes that of the topic, if numpy has it
    :param history: the number of the latest messages to begin with
    :param wait: seconds to wait for a publisher
    """

    def __init__(
        self,
        topic: str,
        dtype: Any = None,
        *,
        name: str | None = None,
        history: int = 0,
        wait: float = 0.0,
        folder: str | os.PathLike[str] | None = None,
    ):
        self._native = _native.NativeSubscriber(topic, history, wait, folder)
        published, size, alignment, _ = self._native.message
        known = _TYPES.get(published)
        if dtype is None and known is None:
            self.close()
            raise TypeError(f"topic `{topic}` carries `{published}` ({size} bytes), which numpy does not know; pass its dtype and name")
        self.topic, self.dtype = topic, known if dtype is None else np.dtype(dtype)
        expected = (_name_of(self.dtype, name), self.dtype.itemsize, self.dtype.alignment)
        if expected != (published, size, alignment):
            self.close()
            raise TypeError(
                f"topic `{topic}` carries `{published}` ({size} bytes, aligned to {alignment}), "
                f"but the subscriber expects `{expected[0]}` ({expected[1]} bytes, aligned to {expected[2]})"
            )

    def receive(self, timeout: float | None = None) -> Sample:
        """Waits for the next message, at most ``timeout`` seconds; then TimeoutError is raised.

        Raises TopicClosed or PublisherDied after the last message.
        """
        return Sample(self._native.receive(timeout), self.dtype)

    def poll(self) -> Sample | None:
        """The next message, if there is one."""
        native = self._native.poll()
        return None if native is None else Sample(native, self.dtype)

    @property
    def lost(self) -> int:
        """The number of messages lost so far: overwritten before they were received."""
        return self._native.lost

    def close(self) -> None:
        """Ends the subscription. Samples stay valid."""
        self._native.close()

    def __iter__(self) -> Iterator[Sample]:
        while True:
            try:
                yield self.receive()
            except TopicClosed:
                return

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
