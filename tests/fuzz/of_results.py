"""What lies in directories of results: records, epochs, claims, leases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from hypothesis import strategies as st
from report.fake import METHODS as FAKE_METHODS
from report.fake import write_results

from harness.claims import judge
from harness.results.environment import measurements
from harness.results.frames import ResultInputs, load_epochs, load_inputs
from harness.results.leases import Leases, Runners
from harness.results.record_store import ResultStore, kept_suites, write_suite
from harness.results.record_store import kept as kept_of
from harness.results.tuned import kept_tunings
from harness.suite.expand import expand
from harness.suite.suite_file import load_suite

from .of_suites import SUITE
from .target import JSON, Files, Target, as_json


class ResultsTarget(Target):
    """A suite's directory of results: records, epochs, the kept suite with its claims, and what lies beside."""

    files: ClassVar[tuple[str, ...]]
    _trials: ClassVar[dict[str, Files]] = {}

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`: two trials, of which the first is changed."""
        made = write_results(folder / "r", methods=FAKE_METHODS[::3], parts=(2,), seeds=(0,), epochs=4)
        store = ResultStore(made, "demo")
        suite = load_suite({**SUITE, "name": "demo", "network": None, "plugins": []})
        write_suite(store.directory, kept_of(suite, expand(suite, device="cpu")[:3]))
        (store.directory / "reference.jsonl").write_text(MEASURED * 2)
        (store.directory / "tuning.json").write_text(json.dumps(TUNED))
        found = {}
        for path in sorted(p for p in store.directory.rglob("*") if p.is_file() and ".staging" not in p.parts):
            found[str(path.relative_to(store.directory.parent))] = path.read_bytes()
        return [{k: v for k, v in found.items() if not Path(k).name.startswith(".")}]

    def victims(self, files: Files) -> list[str]:
        """See `Target`."""
        return [file for file in files if Path(file).name in self.files][:1]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        inputs = load_inputs(folder)
        return inputs.declared, inputs.tunings, [inputs.data(row) for row in inputs.results.to_dict("records")]


MEASURED = '{"machine":"0a","when":"2025-01-01T10:00:00Z","seconds":1.5,"cores":2}\n'
TUNED: dict[str, Any] = {
    "schema_version": 1, "search": "demo-tuning", "suite": "demo", "goal": "best_val", "sampler": "random",
    "methods": [{"dataset": "digits", "method": "full", "target": None, "tried": [], "chosen": None, "study": None}],
}  # fmt: skip


class RecordTarget(ResultsTarget):
    """`record.json`, to rows of results."""

    name, files = "record", ("record.json",)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Records with odd values in some places."""
        victim = self.victims(files)[0]
        record = json.loads(files[victim])
        keys = {key: st.just(value) | JSON for key, value in record.items()}
        return st.fixed_dictionaries({}, optional=keys).map(lambda said: (victim, as_json(record | said)))


class EpochsTarget(ResultsTarget):
    """`epochs.parquet`."""

    name, files = "epochs", ("epochs.parquet",)

    def read(self, folder: Path) -> object:
        """See `Target`."""
        return load_epochs(folder)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Tables with other columns and types."""
        victim = self.victims(files)[0]
        columns = st.sampled_from(["epoch", "rank", "suite", "trial", "loss", "stat_x", "", "epoch_time_s", "\ud7ff"])
        values = st.sampled_from(
            [[1, 2], ["a", "b"], [None, None], [b"x", b"y"], [1.5, float("nan")], [[1], [2]], [{"a": 1}] * 2]
        )
        tables = st.dictionaries(columns, values, max_size=5)
        return tables.map(lambda table: (victim, pd.DataFrame(table).to_parquet(index=False)))


class BesideTarget(ResultsTarget):
    """What lies beside records: times of the reference workload, tunings."""

    name, files = "beside", ("reference.jsonl", "tuning.json")

    def victims(self, files: Files) -> list[str]:
        """See `Target`."""
        return [file for file in files if Path(file).name in self.files]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        return measurements(folder), kept_tunings([folder])

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Tunings with odd values."""
        victim = next(file for file in files if file.endswith("tuning.json"))
        keys = {key: st.just(value) | JSON for key, value in TUNED.items()}
        return st.fixed_dictionaries({}, optional=keys).map(lambda said: (victim, as_json(TUNED | said)))


class ClaimsTarget(ResultsTarget):
    """`suite.json` with its claims, held against results, which stay as they are and are read once."""

    name, files = "claims", ("suite.json",)
    _inputs: ResultInputs | None = None

    def read(self, folder: Path) -> object:
        """See `Target`."""
        self._inputs = known = self._inputs or load_inputs(folder)
        return judge(known.runs, kept_suites([folder]), known.declared)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Other claims: metrics, selections, expectations."""
        victim = self.victims(files)[0]
        suite = json.loads(files[victim])
        metrics = st.sampled_from(["epoch_time_s", "a / b", "stat_x", "1/0", "best_val + ", "((", "-", "epochs * 2"])
        selector = st.dictionaries(
            st.sampled_from(["method", "parts", "rate", "seed", "train.lr", "x"]), JSON, max_size=2
        )
        expect = st.sampled_from(
            [{"at_least": 1}, {"at_most": -1e308}, {"between": [0, 1]}, {"order": [{"parts": 1}, {"parts": 2}]}, {}]
        )
        claim = st.fixed_dictionaries(
            {"name": st.just("c"), "source": st.just("s"), "metric": metrics, "of": selector, "expect": expect | JSON},
            optional={"over": selector, "by": st.sampled_from(["ratio", "difference", "x"])},
        )
        return st.lists(claim, max_size=3).map(lambda claims: (victim, as_json(suite | {"claims": claims})))


class LeaseTarget(Target):
    """What runners tell each other beside results: leases, who they are, that they live."""

    name = "leases"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`."""
        store = ResultStore(folder, "demo")
        with store.runner():
            leases = store.leases()
            leases.take("0123456789ab", None)
            every = {
                str(p.relative_to(store.directory)): p.read_bytes() for p in store.directory.rglob("*") if p.is_file()
            }
        return [{name: data for name, data in every.items() if not name.endswith(".lock")}]

    def read(self, folder: Path) -> object:
        """See `Target`."""
        runners = Runners(folder)
        latest = Leases(folder, "other", runners).latest()
        told = [runners.dead(info.id) for info in runners.all()]
        return told, [runners.dead(str(lease.runner)) for lease in latest.values()], runners.heartbeats_elsewhere()
