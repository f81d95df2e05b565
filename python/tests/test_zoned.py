"""Tests longma.zoned: stores as mappings, transactions, snapshots, arrays, and a killed process."""

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np

from longma import zoned


class Stores(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "a.zoned")

    def open(self, **options):
        store = zoned.open(self.path, "64 MiB", **options)
        self.addCleanup(store.close)
        return store

    def test_it_behaves_as_a_sorted_dictionary(self):
        store, model, rng = self.open(relaxed=True), {}, random.Random(7)
        for step in range(4000):
            key, value = str(rng.randrange(300)).encode(), rng.randbytes(rng.choice([0, 3, 40, 3000]))
            match rng.randrange(10):
                case 0 | 1 | 2 | 3:
                    store[key] = model[key] = value
                case 4:
                    self.assertEqual(store.pop(key, None), model.pop(key, None))
                case 5:
                    changes = {str(rng.randrange(300)).encode(): value for _ in range(5)}
                    store.update(changes)
                    model.update(changes)
                case 6:
                    self.assertEqual(store.setdefault(key, value), model.setdefault(key, value))
                case 7 if key in model:
                    del store[key], model[key]
                case 8:
                    expected = rng.choice([model.get(key), b"other"])
                    if store.compare_and_swap(key, expected, value):
                        self.assertEqual(model.get(key), expected)
                        model[key] = value
                    else:
                        self.assertNotEqual(model.get(key), expected)
                case _:
                    self.assertEqual(store.get(key), model.get(key))
                    self.assertEqual(key in store, key in model)
            if step % 500 == 0:
                rows = sorted(model.items())
                first, end = sorted([key, str(rng.randrange(300)).encode()])
                self.assertEqual(list(store.items()), rows)
                self.assertEqual(list(reversed(store.items())), rows[::-1])
                self.assertEqual(list(store.keys()), [key for key, _ in rows])
                self.assertEqual(list(reversed(store.values())), [value for _, value in rows[::-1]])
                self.assertEqual(list(store.range(first, end)), [row for row in rows if first <= row[0] < end])
                self.assertEqual(list(store.prefix(b"2", reverse=True)), [row for row in rows[::-1] if row[0][:1] == b"2"])
        self.assertEqual(len(store), len(model))
        self.assertEqual(store, model)
        last = max(model)
        self.assertEqual(store.popitem(), (last, model.pop(last)))
        store.close()
        with zoned.open(self.path) as store:
            self.assertEqual(store, model)
            store.clear()
            self.assertFalse(store)
            with self.assertRaises(KeyError):
                store.popitem()

    def test_prefixes_of_bytes_255(self):
        store = self.open()
        keys = [b"a", b"a\xff", b"a\xff\xff", b"a\xffb", b"b", b"\xff", b"\xff\xff\x00"]
        store.update({key: b"" for key in keys})
        for prefix in [b"a\xff", b"\xff", b"\xff\xff", b""]:
            expected = sorted(key for key in keys if key.startswith(prefix))
            self.assertEqual([key for key, _ in store.prefix(prefix)], expected, prefix)

    def test_transactions_are_atomic_and_find_conflicts(self):
        store = self.open()
        store.update({b"a": b"1", b"b": b"2"})
        with store.transaction() as transaction:
            transaction[b"a"] = b"3"
            del transaction[b"b"]
            transaction[b"c"] = b"4"
            self.assertEqual(store[b"a"], b"1", "nothing is visible yet")
            self.assertEqual(list(transaction.items()), [(b"a", b"3"), (b"c", b"4")])
            self.assertEqual(len(transaction), 2)
        self.assertEqual(dict(store), {b"a": b"3", b"c": b"4"})
        with self.assertRaises(RuntimeError), store.transaction() as transaction:
            transaction[b"a"] = b"9"
            raise RuntimeError
        self.assertEqual(store[b"a"], b"3")
        with self.assertRaises(zoned.Conflict), store.transaction() as transaction:
            transaction[b"d"] = transaction[b"a"]
            store[b"a"] = b"5"
        self.assertNotIn(b"d", store)
        with self.assertRaises(KeyError), store.transaction() as transaction:
            del transaction[b"absent"]
        with self.assertRaises(ValueError):
            transaction[b"a"]

    def test_a_transaction_reads_no_more_than_it_needs_and_refuses_long_keys(self):
        store = self.open()
        store.update({b"%06d" % i: b"v" for i in range(2000)})
        with store.transaction() as transaction:
            self.assertEqual(transaction.popitem(), (b"001999", b"v"))
            store[b"000000"] = b"other"
            with self.assertRaisesRegex(ValueError, "the key of b'kk"):
                transaction[b"k" * 100_000] = b""
            self.assertIn((b"000001", b"v"), transaction.items())
            self.assertNotIn(3, transaction.items())
        self.assertEqual(len(store), 1999)
        store.transact(zoned.Transaction.clear)
        self.assertEqual(len(store), 0)

    def test_other_threads_run_while_a_snapshot_closes(self):
        store = self.open(relaxed=True)
        store.update({b"%06d" % i: b"x" * 400 for i in range(50_000)})
        snapshot = store.snapshot()
        thread = threading.Thread(target=snapshot.backup, args=(self.path.with_name("b.zoned"),))
        thread.start()
        closing = threading.Thread(target=snapshot.close)
        closing.start()
        # Python's lock is free: this thread goes on before the snapshot is closed.
        self.assertEqual(store[b"000001"], b"x" * 400)
        closing.join()
        thread.join()

    def test_threads_that_count_together_lose_nothing(self):
        store = self.open(relaxed=True)

        def add():
            for _ in range(200):
                store.transact(lambda t: t.__setitem__(b"n", str(int(t.get(b"n", b"0")) + 1).encode()))

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(store[b"n"], b"800")

    def test_iterators_and_snapshots_see_one_version(self):
        store = self.open(relaxed=True)
        store.update({b"%05d" % i: b"x" * 100 for i in range(10_000)})
        with store.snapshot() as snapshot:
            rows = store.range()
            first = next(rows)
            store.clear()
            self.assertEqual(len([first, *rows]), 10_000)
            self.assertEqual(len(snapshot), 10_000)
            self.assertEqual(snapshot[b"00007"], b"x" * 100)
            self.assertEqual(len(store), 0)
        with self.assertRaises(ValueError):
            len(snapshot)

    def test_arrays_are_loaded_and_read(self):
        store = self.open()
        keys = np.arange(0, 200_000, 2, dtype=">u8")
        record = np.dtype([("x", "<f8"), ("n", "<u4")])
        values = np.zeros(len(keys), record)
        values["x"], values["n"] = np.sqrt(keys.astype(float)), keys
        self.assertEqual(store.load(keys, values), len(keys))
        self.assertEqual(len(store), len(keys))
        got_keys, got_values = store.arrays(">u8", record)
        np.testing.assert_array_equal(got_keys, keys)
        np.testing.assert_array_equal(got_values, values)
        part, _ = store.arrays(">u8", record, first=(1000).to_bytes(8), end=(1010).to_bytes(8))
        self.assertEqual(part.tolist(), [1000, 1002, 1004, 1006, 1008])
        self.assertEqual(len(store.arrays(">u8", record, limit=3)[0]), 3)
        bytes_keys = np.array([[0, 0, 0, 0, 0, 0, 0, 1]], np.uint8)
        self.assertEqual(store.load(bytes_keys, values[:1]), 1)
        self.assertIn((1).to_bytes(8), store)
        for bad_keys, bad_values, error in [
            (keys[::-1], values, ValueError),
            (keys[:2], values[:3], ValueError),
            (np.array(["a"]), values[:1], TypeError),
            (np.array([None]), values[:1], TypeError),
            (np.zeros((1, 2, 2), np.uint8), values[:1], ValueError),
        ]:
            with self.assertRaises(error):
                store.load(bad_keys, bad_values)
        self.assertEqual(len(store), len(keys) + 1, "a load that fails changes nothing")
        store[b"short"] = b""
        with self.assertRaisesRegex(ValueError, "short has 5 bytes"):
            store.arrays(">u8", record)

    def test_a_killed_process_loses_no_update(self):
        program = f"""
import os, signal
from longma import zoned
store = zoned.open({str(self.path)!r}, "64 MiB")
for i in range(50):
    store.update({{b"a%d" % i: b"1", b"b%d" % i: b"2"}})
os.kill(os.getpid(), signal.SIGKILL)
"""
        done = subprocess.run([sys.executable, "-c", program], timeout=60)
        self.assertEqual(done.returncode, -signal.SIGKILL)
        self.assertEqual(len(self.open()), 100)

    def test_backups_and_readers(self):
        store = self.open()
        store[b"k"] = b"v"
        copy = self.path.with_name("copy.zoned")
        self.assertEqual(store.backup(copy), 1)
        with self.assertRaises(OSError):
            store.backup(copy)
        store.checkpoint()
        self.assertEqual(store.statistics()["keys"], 1)
        with zoned.open(copy, read_only=True) as one, zoned.open(copy, read_only=True) as two:
            self.assertEqual((one[b"k"], two[b"k"]), (b"v", b"v"))
            with self.assertRaisesRegex(zoned.StoreError, "for reading only"):
                one[b"k"] = b"w"

    def test_errors_name_the_fault(self):
        store = self.open()
        for call, error, text in [
            (lambda: store["a"], TypeError, "encode"),
            (lambda: store.__setitem__(b"a", 1), TypeError, "bytes, not int"),
            (lambda: store.update(a=b""), TypeError, "by name"),
            (lambda: store[b"absent"], KeyError, "absent"),
            (lambda: store.__setitem__(b"k" * 100_000, b""), ValueError, "the key has 100000 bytes"),
            (lambda: zoned.open(self.path, "1 XB"), ValueError, "capacity: '1 XB' is not a size"),
            (lambda: zoned.open(self.path, -1), ValueError, "capacity: -1"),
            (lambda: zoned.open(self.path, cache=1.5), ValueError, "cache: 1.5"),
            (lambda: store.backup(self.path), FileExistsError, "new file"),
            (lambda: store.backup(self.path.with_name("no") / "b"), FileNotFoundError, "no such folder"),
            (lambda: store.arrays("u8", "u8", limit=-1), ValueError, "-1"),
            (lambda: store.load(np.arange(1), np.ma.masked_array([1], [1])), TypeError, "masked"),
            (lambda: zoned.open(self.path), OSError, "use"),
            (lambda: zoned.open(self.path.with_name("absent")), FileNotFoundError, "give a capacity"),
        ]:
            with self.assertRaisesRegex(error, text):
                call()
        rows, snapshot = store.range(), store.snapshot()
        next(rows, None)
        store.close()
        store.close()
        for call in [lambda: store[b"a"], lambda: snapshot.get(b"a"), lambda: len(store), lambda: list(store.range())]:
            with self.assertRaisesRegex(ValueError, "closed"):
                call()
        with zoned.open(self.path) as store:
            store[b"a"] = b"1"
        other = self.path.with_name("text")
        other.write_bytes(b"no store" * 1000)
        with self.assertRaises((OSError, zoned.StoreError)):
            zoned.open(other)
        self.assertEqual(other.read_bytes()[:8], b"no store")
        gc.collect()

    def test_other_threads_may_close_the_store(self):
        for _ in range(20):
            store = zoned.open(self.path, "64 MiB", relaxed=True)
            store.update({b"%06d" % i: b"x" * 100 for i in range(5000)})
            failures = []

            def read(store=store, failures=failures):
                try:
                    while True:
                        with store.transaction() as transaction:
                            transaction[b"n"] = str(sum(1 for _ in transaction)).encode()
                except zoned.Conflict:
                    read()
                except ValueError:
                    pass  # closed
                except Exception as error:
                    failures.append(error)

            threads = [threading.Thread(target=read) for _ in range(2)]
            for thread in threads:
                thread.start()
            try:
                store.close()
            except zoned.StoreError as error:
                self.assertIn("still open", str(error))
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            del store, thread, threads, read
            gc.collect()

    def test_a_forked_child_cannot_write(self):
        store = self.open()
        child = os.fork()
        if child == 0:
            try:
                store[b"a"] = b"1"
            except Exception as error:
                os._exit(0 if "forked" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        store[b"b"] = b"2"


if __name__ == "__main__":
    unittest.main()
