"""Tests longma.via: arrays in shared memory between threads and processes."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np

from longma import via

SOON = 20.0


class Topics(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name, "topics")

    def publisher(self, dtype, **options):
        publisher = via.Publisher("topic", dtype, folder=self.folder, **options)
        self.addCleanup(publisher.close)
        return publisher

    def subscriber(self, *args, **options):
        subscriber = via.Subscriber("topic", *args, folder=self.folder, **options)
        self.addCleanup(subscriber.close)
        return subscriber

    def process(self, text):
        """Runs a Python program in another process; the first line that it prints says that it has begun."""
        program = f"import numpy as np, os, sys, time\nfrom longma import via\nfolder = {str(self.folder)!r}\n{text}"
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)

        def end():
            process.kill()
            process.wait()
            process.stdout.close()

        self.addCleanup(end)
        self.assertEqual(process.stdout.readline(), "begun\n")
        return process

    def test_arrays_of_any_length_arrive_without_a_copy(self):
        publisher, subscriber = self.publisher(np.float32, max_elements=1000), self.subscriber()
        for length in [0, 1, 12, 13, 1000]:
            with publisher.loan(length) as array:
                array[:] = np.arange(length)
            self.assertFalse(array.flags.writeable)
            sample = subscriber.receive(SOON)
            self.assertEqual((len(sample), sample.lost, sample.is_intact), (length, 0, True))
            np.testing.assert_array_equal(sample.array, np.arange(length, dtype=np.float32))
            self.assertFalse(sample.array.flags.writeable)
            if length:
                self.assertFalse(sample.array.flags.owndata)
        self.assertIsNone(subscriber.poll())
        self.assertEqual(publisher.published, 5)
        with self.assertRaisesRegex(ValueError, "1001 elements exceed"):
            publisher.publish(np.zeros(1001))

    def test_an_array_stays_valid_until_it_is_gone_and_a_sample_until_it_is_released(self):
        publisher, subscriber = self.publisher(np.uint64, max_elements=100, depth=2, max_samples=2), self.subscriber()
        publisher.publish(np.full(100, 7))
        sample = subscriber.receive(SOON)
        array = sample.array
        for value in range(200):
            publisher.publish(np.full(100, value))
        self.assertTrue((array == 7).all())
        with self.assertRaisesRegex(BufferError, "an array still refers to"):
            sample.release()
        other = subscriber.receive(SOON)
        self.assertEqual(other.lost, other.number - 1)
        with self.assertRaisesRegex(RuntimeError, "keeps 2 samples"):
            subscriber.poll()
        del array
        gc.collect()
        sample.release()
        self.assertIsNotNone(subscriber.poll())
        with self.assertRaisesRegex(BufferError, "released"):
            sample.array
        # An array outlives everything else.
        array = other.array
        expected = array.copy()
        del other, sample
        subscriber.close()
        publisher.close()
        gc.collect()
        np.testing.assert_array_equal(array, expected)

    def test_a_loan_whose_block_raises_is_not_published(self):
        publisher, subscriber = self.publisher(np.int16, max_elements=10), self.subscriber()
        with self.assertRaises(KeyError), publisher.loan(5):
            raise KeyError("x")
        publisher.publish([1, 2])
        self.assertEqual(subscriber.receive(SOON).array.tolist(), [1, 2])
        with publisher.loan(3) as kept:
            with self.assertRaisesRegex(RuntimeError, "another loan"):
                publisher.publish([1])
            kept[:] = 4
        publisher.close()
        self.assertEqual(kept.tolist(), [4, 4, 4])
        with self.assertRaisesRegex(ValueError, "closed"):
            publisher.publish([1])

    def test_structured_types_have_a_name(self):
        position = np.dtype([("x", np.float64), ("id", np.uint32)], align=True)
        with self.assertRaisesRegex(ValueError, "has no name"):
            self.publisher(position)
        with self.assertRaisesRegex(ValueError, "Python objects"):
            self.publisher(object, name="x")
        publisher = self.publisher(position, name="robot.Position")
        with self.assertRaisesRegex(TypeError, "`robot.Position` .16 bytes"):
            self.subscriber()
        with self.assertRaisesRegex(TypeError, "carries `robot.Position` .*expects `f64` .8 bytes"):
            self.subscriber(np.float64)
        subscriber = self.subscriber(position, name="robot.Position")
        publisher.publish((1.5, 7))
        self.assertEqual(subscriber.receive(SOON).array[0].tolist(), (1.5, 7))

    def test_a_type_in_rust_and_in_numpy_is_the_same(self):
        for dtype, name in [(np.uint8, "[u8]"), (np.int64, "[i64]"), (np.float32, "[f32]"), (np.float64, "[f64]")]:
            with via.Publisher("typed", dtype, max_elements=2, folder=self.folder):
                (topic,) = via.topics(self.folder)
                self.assertEqual(topic, via.Topic("typed", name, os.getpid(), 0, 0))
        self.assertEqual(via.topics(self.folder), [])

    def test_waiting_ends_with_a_message_a_time_limit_or_the_end_of_the_topic(self):
        publisher, subscriber = self.publisher(np.float64), self.subscriber()
        with self.assertRaises(TimeoutError):
            subscriber.receive(0.01)
        received = []
        waiter = threading.Thread(target=lambda: received.extend(sample.array[0] for sample in subscriber))
        waiter.start()
        for value in [1.0, 2.0]:
            time.sleep(0.01)
            publisher.publish(value)
        publisher.close()
        waiter.join(SOON)
        self.assertEqual(received, [1.0, 2.0])
        with self.assertRaises(via.TopicClosed):
            subscriber.poll() or subscriber.receive(SOON)
        with self.assertRaisesRegex(OSError, "no publisher"):
            self.subscriber()

    def test_a_topic_that_loses_nothing_waits(self):
        publisher, subscriber = self.publisher(np.uint8, block=True, depth=2), self.subscriber()
        publisher.publish(1)
        publisher.publish(2)
        with self.assertRaises(TimeoutError):
            publisher.publish(3, timeout=0.01)
        self.assertEqual(subscriber.receive(SOON).array[0], 1)
        publisher.publish(3, timeout=SOON)

    def test_the_end_of_a_killed_process_is_noticed(self):
        process = self.process(
            "publisher = via.Publisher('topic', np.float64, max_elements=100, history=4, folder=folder)\n"
            "publisher.publish(np.ones(100)); print('begun', flush=True)\n"
            "time.sleep(60)\n"
        )
        subscriber = self.subscriber(history=4)
        array = subscriber.receive(SOON).array
        process.send_signal(signal.SIGKILL)
        with self.assertRaises(via.PublisherDied):
            subscriber.receive(SOON)
        self.assertTrue((array == 1).all())
        self.publisher(np.uint8)

    def test_ctrl_c_ends_a_wait(self):
        self.publisher(np.uint8)
        process = self.process(
            "subscriber = via.Subscriber('topic', folder=folder)\n"
            "try: print('begun', flush=True); subscriber.receive()\n"
            "except KeyboardInterrupt: print('interrupted', flush=True)\n"
        )
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.stdout.readline(), "interrupted\n")


if __name__ == "__main__":
    unittest.main()
