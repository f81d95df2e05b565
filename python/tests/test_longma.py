"""Tests the package: machines, programs, experiments, and a sweep over a cluster with a dying worker.

Needs the command: $LONGMA, or one on the path.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from contextlib import contextmanager
from pathlib import Path

import longma

ROOT = Path(__file__).resolve().parents[2]
GUESTS = ROOT / "guests/prebuilt/loongarch64"
EXPERIMENTS = ROOT / "experiments"


@contextmanager
def limited(limit):
    """The command under a limit of the shell's ulimit."""
    before = os.environ.get("LONGMA")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "longma")
        script.write_text(f'#!/bin/sh\nulimit {limit}\nexec "{longma.command()}" "$@"\n')
        script.chmod(0o755)
        os.environ["LONGMA"] = str(script)
        try:
            yield
        finally:
            os.environ.pop("LONGMA")
            if before:
                os.environ["LONGMA"] = before


class Machines(unittest.TestCase):
    def test_every_built_in_machine_opens_and_writes_itself_out(self):
        self.assertIn("loongson-3a5000", longma.Machine.names())
        for name in longma.Machine.names():
            machine = longma.Machine(name)
            self.assertEqual(machine.name, name)
            self.assertEqual(longma.Machine.parse(machine.to_toml()), machine)

    def test_a_part_is_read_and_changed_as_an_object(self):
        machine = longma.Machine("loongson-3a5000")
        before = machine.caches.l3.size
        machine.caches.l3.size = "8 MiB"
        self.assertEqual(machine["caches.l3.size"], "8 MiB")
        self.assertIn('size = "8 MiB"', machine.to_toml())
        # Each value is valid only together with the others.
        twelve = machine.edit({"caches.l3.size": "12 MiB", "caches.l3.ways": 12, "caches.l3.dca.ways": 11})
        self.assertEqual((twelve["caches.l3.size"], twelve["caches.l3.ways"]), ("12 MiB", 12))
        changed = machine.edit({"caches.l3.size": before})
        self.assertEqual((changed.caches.l3.size, machine.caches.l3.size), (before, "8 MiB"))
        self.assertEqual(changed, longma.Machine("loongson-3a5000"))

    def test_an_invalid_change_is_refused_and_leaves_the_machine_unchanged(self):
        machine = longma.Machine("loongson-3a5000")
        with self.assertRaisesRegex(ValueError, "write \"8 MiB\""):
            machine.caches.l3.size = "8MiB"
        self.assertEqual(machine, longma.Machine("loongson-3a5000"))
        with self.assertRaisesRegex(AttributeError, "it has .*size"):
            machine.caches.l3.sise
        with self.assertRaisesRegex(FileNotFoundError, "did you mean"):
            longma.Machine("loongson-3a500")

    def test_a_machine_is_laid_out_and_drawn(self):
        machine = longma.Machine("loongson-3a5000")
        self.assertEqual(len(machine.layout()["hosts"][0]["cores"]), 4)
        self.assertIn("LA464", machine.draw(80))
        self.assertIn("<svg", machine._repr_html_())


class Programs(unittest.TestCase):
    def test_a_program_runs_and_is_counted(self):
        done = longma.run(GUESTS / "queens", "6", "4", machine=longma.Machine("loongson-3a5000"), timeout=60)
        self.assertEqual((done.status, done.output), (0, "queens 6: 4 ways, checksum 2301c005ca0d9055\n"))
        self.assertGreater(done.statistics["instructions"], 10_000)

    def test_a_simulated_run_gives_its_statistics(self):
        for level, counted in [("cache", "instructions"), ("timing", "cycles")]:
            done = longma.run(GUESTS / "queens", "5", "1", machine="loongson-3a5000", level=level, timeout=120)
            self.assertEqual((done.status, done.errors), (0, ""))
            self.assertGreater(done.statistics["statistics"]["run"][counted]["value"], 10_000)
        with self.assertRaisesRegex(ValueError, "there are: functional, cache, timing"):
            longma.run(GUESTS / "queens", level="exact")

    def test_a_run_uses_plug_ins(self):
        machine = longma.Machine("loongson-3a5000")
        samples = ROOT / "crates/model/plugin/samples"
        own = machine.edit(
            {
                "caches.l1d.replacement": "plugin",
                "caches.l1d.replacement_module": str(samples / "lru.wasm"),
                "cores.la464.branch.predictor": "plugin",
                "cores.la464.branch.predictor_module": str(samples / "gshare.wasm"),
            }
        )
        built_in = machine.edit({"caches.l1d.replacement": "lru", "cores.la464.branch.predictor": "gshare"})
        runs = [longma.run(GUESTS / "queens", "6", machine=m, level="timing") for m in (own, built_in, machine)]
        results = [run.statistics["statistics"] for run in runs]
        self.assertEqual(results[0], results[1])
        self.assertNotEqual(results[0], results[2])
        # The written machine contains the modules and needs no other file.
        text = own.to_toml()
        self.assertNotIn(str(samples), text)
        self.assertEqual(longma.Machine.parse(text).to_toml(), text)
        with self.assertRaisesRegex(ValueError, "needs its `replacement_module`"):
            machine.caches.l1d.replacement = "plugin"

    def test_a_host_that_is_short_of_memory_raises(self):
        with limited("-v 4000000"), self.assertRaisesRegex(longma.HostFault, "ulimit -v"):
            longma.run(GUESTS / "queens", "5", timeout=60)

    def test_a_missing_program_raises(self):
        done = longma.run("/no/such/program", timeout=60)
        self.assertEqual(done.status, 127)
        self.assertIn("/no/such/program", done.errors)


class Experiments(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.experiment = longma.Experiment(EXPERIMENTS / "queens-growth.toml").with_sweep({"argument": ["4", "5", "6"]})
        del self.experiment.content["published"][3:]

    def test_a_table_is_arrow_pandas_and_polars(self):
        table = self.experiment.run(store=self.folder)
        self.assertEqual(len(table), 3)
        ways = {row["argument"]: row["ways"] for row in table.rows()}
        self.assertEqual(ways, {"4": 2, "5": 10, "6": 4})
        self.assertEqual(sorted(table.pandas()["ways"]), [2, 4, 10])
        self.assertEqual(sorted(table.polars()["ways"].to_list()), [2, 4, 10])
        self.assertEqual(table.units()["ways"], "ways")
        states = [point.state for point in self.experiment.points(store=self.folder)]
        self.assertEqual(states, ["done"] * 3)
        ratios = [row["ratio"] for row in self.experiment.compare(store=self.folder).rows()]
        self.assertEqual(ratios, [1.0] * 3)
        page = self.experiment.report(self.folder / "report.html", store=self.folder).read_text()
        self.assertIn("<figure class=\"chart line\"", page)

    def test_an_experiment_runs_on_machines_that_were_changed(self):
        small = longma.Machine("loongson-3a5000").edit({"caches.l3.size": "8 MiB"})
        experiment = self.experiment.with_machines(["loongson-3a5000", small])
        table = experiment.run(store=self.folder)
        self.assertEqual(len(table), 6)
        self.assertEqual(len({point.key for point in experiment.points(store=self.folder)}), 6)
        self.assertEqual({row["failure"] for row in table.rows()}, {None})

    def test_points_that_failed_because_of_the_host_raise_and_run_again(self):
        self.experiment.content["time_limit"] = "1 us"
        with self.assertRaisesRegex(longma.HostFault, "time_limit"):
            self.experiment.run(store=self.folder)
        self.assertEqual({point.state for point in self.experiment.points(store=self.folder)}, {"missing"})
        self.experiment.content["time_limit"] = "60 s"
        with limited("-v 4000000"), self.assertRaises(longma.HostFault):
            self.experiment.run(store=self.folder)
        self.assertEqual(len(self.experiment.run(store=self.folder)), 3)

    def test_a_table_of_an_earlier_run_is_not_returned(self):
        self.experiment.run(store=self.folder)
        wrong = self.experiment.with_parameters(program="absent")
        with self.assertRaisesRegex(longma.Failed, "absent"):
            wrong.run(store=self.folder)
        table = self.folder / "queens-growth.parquet"
        table.unlink()
        table.mkdir()
        with self.assertRaisesRegex(longma.Failed, "cannot be written"):
            self.experiment.run(store=self.folder)

    def test_machines_that_cannot_run_it_are_refused(self):
        for machine in ["hygon-8node", longma.Machine("hygon-8node")]:
            with self.assertRaisesRegex(longma.Failed, "x86-64 cores"):
                self.experiment.with_machines([machine])
        with self.assertRaisesRegex(longma.Failed, "loongson-3a500"):
            self.experiment.with_machines(["loongson-3a500"])
        self.experiment.content["quick"]["machines"] = ["loongson-3a4000"]
        other = self.experiment.with_machines(["loongson-3a5000"])
        machines = {point.machine for point in other.points(quick=True, store=self.folder)}
        self.assertEqual(machines, {"loongson-3a5000"})

    def test_the_metrics_of_an_experiment_are_listed_with_units(self):
        metrics = self.experiment.metrics()
        self.assertEqual((metrics["ways"], metrics["blocks_decoded"]), ("ways", "blocks"))

    def test_files_of_killed_processes_are_removed_and_files_in_use_kept(self):
        hold = "import time\nfrom longma.command import scratch\nwith scratch() as f: print(f, flush=True); time.sleep(600)"
        environment = dict(os.environ, TMPDIR=str(self.folder))
        processes = [subprocess.Popen([sys.executable, "-c", hold], env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        folders = [Path(process.stdout.readline().strip()) for process in processes]
        long_ago = time.time() - 3600
        for folder in folders:
            os.utime(folder, (long_ago, long_ago))
        processes[0].kill()
        processes[0].wait()
        again = "from longma.command import scratch\nwith scratch(): pass"
        subprocess.run([sys.executable, "-c", again], env=environment, check=True)
        self.assertEqual([folder.exists() for folder in folders], [False, True])
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def test_errors_of_an_experiment_have_positions(self):
        self.experiment.content["metrics"]["ways"]["unti"] = "ways"
        with self.assertRaisesRegex(longma.Failed, "did you mean `unit`"):
            self.experiment.check()

    def test_a_cluster_whose_worker_dies_makes_the_table_that_the_command_makes(self):
        from distributed import Client, LocalCluster

        repeats = [[str(n)] for n in range(200, 212)]
        experiment = self.experiment.with_sweep({"argument": ["6", "7"], "arguments": repeats})
        del experiment.content["parameters"]["arguments"]
        killed = []

        def kill(cluster):
            """Kills a worker when three points are done."""
            for _ in range(3000):
                done = sum(task.state == "memory" for task in list(cluster.scheduler.tasks.values()))
                if done >= 3:
                    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
                    killed.append(done)
                    return
                time.sleep(0.01)

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            killer = threading.Thread(target=kill, args=(cluster,))
            killer.start()
            spread = longma.sweep(experiment, client, store=self.folder / "spread")
            killer.join()
        self.assertEqual(len(killed), 1)
        self.assertLess(killed[0], 24)
        alone = experiment.run(store=self.folder / "alone")
        self.assertEqual(len(spread), 24)
        self.assertEqual(spread, alone)
        name = f"{experiment.name}.jsonl"
        self.assertEqual((self.folder / "spread" / name).read_bytes(), (self.folder / "alone" / name).read_bytes())


class Notebook(unittest.TestCase):
    def test_the_notebook_runs_from_top_to_bottom(self):
        import nbformat
        from nbclient import NotebookClient

        for path in sorted((ROOT / "python/notebooks").glob("*.ipynb")):
            notebook = nbformat.read(path, as_version=4)
            with tempfile.TemporaryDirectory() as folder:
                os.environ["LONGMA_RESULTS"] = folder
                client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}})
                client.execute()
            outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
            self.assertTrue(any("text/html" in output.get("data", {}) for output in outputs), path)


if __name__ == "__main__":
    unittest.main()
