"""What the nodes of a run tell each other."""

from __future__ import annotations

import random
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from harness.launch.messages import packed
from harness.launch.rendezvous import Cluster, NodeInfo, StoreClient, check_plan, expand_hosts

from .mutate import mutated
from .target import JSON, Files, Target, as_json


class _Store:
    """A store that says whatever was put there."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)


INFO = NodeInfo("s", "10.0.0.1", 0, {"platform": "x", "cores": 2})
PLAN: dict[str, Any] = {
    "nodes": 2, "versions": {"harness": "1"}, "plugins": {}, "suite": "s", "timeouts": {}, "trials": {"a": "b"},
    "node_timeout_s": 30.0,
}  # fmt: skip


class RendezvousTarget(Target):
    """What nodes say to each other, and Slurm's lists of nodes."""

    name = "rendezvous"

    def samples(self, folder: Path) -> list[Files]:
        """See `Target`: messages as bytes in the store."""
        messages = {"node": asdict(INFO), "plan": PLAN}
        found = {key: b"0:" + packed(value) for key, value in messages.items()}
        data = packed(PLAN)
        long = {"plan": b"1:" + data[:20], "plan#1": data[20:]}
        return [{**found, "hosts": b"node[01-03,7],x"}, {**found, **long, "hosts": b"a1,b[2-4]c[5,6]"}]

    def prepare(self, folder: Path) -> None:
        """See `Target`."""
        self._values = {path.name: path.read_bytes() for path in folder.iterdir()}
        self._client = StoreClient.__new__(StoreClient)  # without a connection: bytes are all that it reads
        self._client.cluster, self._client._store = Cluster(2, "127.0.0.1"), _Store(self._values)  # type: ignore

    def read(self, folder: Path) -> object:
        """See `Target`."""
        values, client = self._values, self._client
        NodeInfo.of(client.get("node"))
        check_plan(PLAN, client.get("plan"))
        return expand_hosts(values["hosts"].decode("latin1")), client.text("hosts")

    def named(self, folder: Path) -> str:
        """A message has no file: a line names its key."""
        return ": "

    def mutation(self, files: Files, others: list[Files], rng: random.Random) -> tuple[str, bytes]:
        """Also what is inside: JSON that is packed again."""
        victim = rng.choice(("node", "plan"))
        if rng.random() < 0.5 or "#" in "".join(files):
            return super().mutation(files, others, rng)
        text = zlib.decompress(files[victim][2:])
        return victim, b"0:" + zlib.compress(mutated(text, [text], rng), 1)

    def strategy(self, files: Files) -> st.SearchStrategy[tuple[str, bytes]]:
        """Any JSON, packed, in any number of pieces."""
        heads = st.sampled_from([b"0:", b"1:", b"999999:", b"-1:", b":", b"", b"1e9:", b"\xff:"])
        body = JSON.map(lambda value: zlib.compress(as_json(value), 1)) | st.binary(max_size=50)
        messages = st.tuples(st.sampled_from(["node", "plan"]), st.tuples(heads, body).map(b"".join))
        hosts = st.text("ab[]0123-,", max_size=30).map(lambda text: ("hosts", text.encode()))
        return messages | hosts
