"""Checks that every published number has its experiment or a reason, and that the page of the book lists all of them.

`python3 tests/test_published.py --update` writes the page from docs/published.tsv and the experiments.
"""

import collections
import pathlib
import sys
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs/published.tsv"
PAGE = ROOT / "docs/src/results/published.md"
# Numbers and claims that each publication prints. A row may stand for the values of several programs or points.
PRINTED = {"Godson": 22, "MyVIA": 7, "NUMA": 17, "affinity": 9, "LoongArch": 24, "ZB+-tree": 20}
TITLES = {
    "Godson": "Su Wen et al., Optimization of memory and network subsystems in multi-core processors for cloud computing, 2012",
    "MyVIA": "Jiao Zhenqiang et al., MyVIA: one of design and implementation of VIA based on Myrinet",
    "NUMA": "He Mujun et al., Virtual machine memory access optimisation on NUMA, 2021",
    "affinity": "Hanford et al., Analysis of the effect of core affinity on high-throughput flows, 2014",
    "LoongArch": "Hu Weiwu et al., Loongson Instruction Set Architecture Technology, 2022",
    "ZB+-tree": "Liu Yang, Jin Peiquan, ZB+-tree: a ZNS-SSD-aware index",
}
Row = collections.namedtuple("Row", "publication printed_in claim experiment remark")


def rows():
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return [Row(*line.split("\t")) for line in lines[1:]]


def experiments():
    files = sorted((ROOT / "experiments").glob("*.toml"))
    return {file.stem: tomllib.loads(file.read_text()) for file in files}


def published(experiment):
    """Names of the metrics that an experiment compares with published values."""
    kinds = ("values", "at_least", "at_most")
    return {name for entry in experiment.get("published", []) for kind in kinds for name in entry.get(kind, {})}


def names(row):
    """The experiment of a row and its metrics."""
    experiment, _, metrics = row.experiment.partition(": ")
    return experiment, metrics.split()


def page():
    everything = rows()
    beside = sum(1 for row in everything if row.experiment and not row.remark)
    shown = sum(1 for row in everything if row.experiment and row.remark)
    absent = len(everything) - beside - shown
    out = [
        "# Published numbers",
        "",
        "<!-- Generated: python3 tests/test_published.py --update -->",
        "",
        f"Numbers and claims of the publications that Longma models: {len(everything)} in all. {beside} are printed beside the results",
        f"of an experiment (`longma experiment compare EXPERIMENT`), {shown} have an experiment without a number to compare with, and",
        f"{absent} have none, for the reason given. Nothing is fitted to them.",
    ]
    for publication, title in TITLES.items():
        out += ["", f"## {title}", "", "| printed in | number or claim | experiment and metrics, or why there is none |", "| --- | --- | --- |"]
        for row in everything:
            if row.publication != publication:
                continue
            experiment, metrics = names(row)
            words = [f"`{experiment}`: " + ", ".join(f"`{metric}`" for metric in metrics)] if experiment else []
            cell = "; ".join(words + [row.remark] * bool(row.remark))
            out.append(f"| {row.printed_in} | {row.claim} | {cell} |")
    return "\n".join(out) + "\n"


class Published(unittest.TestCase):
    def test_all_printed_numbers_are_listed(self):
        self.assertEqual(dict(collections.Counter(row.publication for row in rows())), PRINTED)
        self.assertEqual(set(TITLES), set(PRINTED))
        for row in rows():
            self.assertTrue(row.printed_in and row.claim, row)

    def test_each_is_beside_a_result_or_has_a_reason(self):
        known = experiments()
        for row in rows():
            if not row.experiment:
                self.assertTrue(row.remark, row)
                continue
            experiment, metrics = names(row)
            self.assertIn(experiment, known, row)
            self.assertTrue(metrics, row)
            for metric in metrics:
                self.assertIn(metric, known[experiment]["metrics"], row)
                if not row.remark:
                    self.assertIn(metric, published(known[experiment]), row)

    def test_experiments_compare_with_nothing_else(self):
        listed = collections.defaultdict(set)
        for row in rows():
            listed[names(row)[0]].update(names(row)[1])
        # Checked against mathematics and against another model, and the effect of parameters on listed numbers.
        others = {"queens-growth": {"ways"}, "instruction-sets": {"expansion"}, "myvia-sensitivity-bandwidth": {"bandwidth"},
                  "myvia-fitted-bandwidth": {"bandwidth", "over_bvia"}, "myvia-fitted-latency": {"over_bvia"}, "idma-memcpy": {"over_library_in_memory"}}
        for name, experiment in experiments().items():
            self.assertLessEqual(published(experiment), listed[name] | others.get(name, set()), name)

    def test_every_entry_says_where_it_is_printed(self):
        for name, experiment in experiments().items():
            for entry in experiment.get("published", []):
                place = entry.get("note") or experiment["sources"][entry["source"]].get("place") or name == "queens-growth"
                self.assertTrue(place, f"{name}: {entry}")

    def test_the_page_is_up_to_date(self):
        self.assertEqual(PAGE.read_text(), page(), "run python3 tests/test_published.py --update")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        PAGE.write_text(page())
    else:
        unittest.main()
