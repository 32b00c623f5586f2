"""A Ray cluster of this machine: a head without cores and two nodes, each a raylet of its own."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SMALL = {"object_store_memory": 80 << 20}
CORES = 4


@contextmanager
def _handler_kept() -> Iterator[None]:
    """Put back the handler of SIGTERM: a node that starts leaves its own in this process, which then ignores it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class OwnRay:
    """A running cluster; `env` is the environment that finds it."""

    def __init__(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self.home = tempfile.mkdtemp(prefix="ray-")  # short: a socket's path has a limit
        # Where Ray notes the address of the newest cluster: the user's own note is not ours to write.
        os.environ["RAY_TMPDIR"] = self.home
        os.mkdir(os.path.join(self.home, "ray"))
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": self.home, **SMALL}
        with _handler_kept():
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = [self.add_node() for _ in range(2)]
        self.env = {**os.environ, "RAY_ADDRESS": self._cluster.address}

    def add_node(self) -> Any:
        """Start a node and return it."""
        with _handler_kept():
            return self._cluster.add_node(num_cpus=CORES, memory=4 << 30, **SMALL)

    def kill_node(self, name: str) -> None:
        """End the node whose id begins with `name`, without a word: its raylet is killed; and start another."""
        node = next(node for node in self.nodes if node.node_id.startswith(name))
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        self.nodes.append(self.add_node())

    def stop(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()
        del os.environ["RAY_TMPDIR"]
        shutil.rmtree(self.home, ignore_errors=True)
