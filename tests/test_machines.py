"""Checks machine files that extend another one: the shared parts must be equal. `longma machine check` checks each file."""

import pathlib
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def read(path):
    return tomllib.loads((ROOT / path).read_text())


class TwoNics(unittest.TestCase):
    """The host of the paper with a second NIC, for `experiments/affinity-nics.toml`."""

    def test_it_is_the_published_host_but_for_that_nic_and_its_flow_control(self):
        one, two = read("crates/machine/topology/machines/sandybridge-2x6.toml"), read("experiments/machines/sandybridge-2x6-two-nics.toml")
        for machine in (one, two):
            for words in ("name", "title", "description"):
                del machine[words]
        host = two["hosts"][0]
        self.assertEqual((host["buses"].pop()["name"], host["devices"].pop()["name"]), ("slot1", "eth1"))
        self.assertEqual(two["cables"].pop()["between"], ["host0.eth1", "host1.eth1"])
        nic = two["devices"]["connectx3"]
        self.assertIs(nic["ethernet"].pop("pause"), False, "as it is where a file says nothing")
        self.assertEqual(two["sources"].pop(nic["source_of"].pop("pause"))["kind"], "estimate")
        self.assertEqual(two, one)


if __name__ == "__main__":
    unittest.main()
