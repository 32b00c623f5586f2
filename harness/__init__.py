"""Benchmark harness for distributed graph-neural-network training.

A method of one's own needs only the names in `__all__`; they are imported on first use, so that commands
which train nothing stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "BlockSize": "harness.runtime.layer_memory",
    "CachePolicy": "harness.runtime.cache",
    "EdgeSampler": "harness.runtime.edge_sampler",
    "FullGraphMethod": "harness.runtime.method",
    "FullGraphOptions": "harness.runtime.method",
    "Loss": "harness.runtime.step",
    "MemoryCase": "harness.runtime.memory_model",
    "Method": "harness.runtime.method",
    "MethodOptions": "harness.runtime.method",
    "PipelinedMethod": "harness.runtime.pipelined",
    "PipelinedOptions": "harness.runtime.pipelined",
    "Step": "harness.runtime.step",
    "SyncExchange": "harness.runtime.exchange",
    "TrainGraph": "harness.runtime.stale",
    "Worker": "harness.runtime.worker",
    "announce": "harness.runtime.exchange",
    "full_graph_memory": "harness.runtime.memory_model",
    "load_epochs": "harness.results.frames",
    "load_results": "harness.results.frames",
    "mini_batch_memory": "harness.runtime.memory_model",
    "sample_neighbours": "harness.graph.sampling",
    "stale_memory": "harness.runtime.stale_memory",
}
__all__ = [
    "BlockSize",
    "CachePolicy",
    "EdgeSampler",
    "FullGraphMethod",
    "FullGraphOptions",
    "Loss",
    "MemoryCase",
    "Method",
    "MethodOptions",
    "PipelinedMethod",
    "PipelinedOptions",
    "Step",
    "SyncExchange",
    "TrainGraph",
    "Worker",
    "announce",
    "full_graph_memory",
    "load_epochs",
    "load_results",
    "mini_batch_memory",
    "sample_neighbours",
    "stale_memory",
]

if TYPE_CHECKING:
    from harness.graph.sampling import sample_neighbours
    from harness.results.frames import load_epochs, load_results
    from harness.runtime.cache import CachePolicy
    from harness.runtime.edge_sampler import EdgeSampler
    from harness.runtime.exchange import SyncExchange, announce
    from harness.runtime.layer_memory import BlockSize
    from harness.runtime.memory_model import MemoryCase, full_graph_memory, mini_batch_memory
    from harness.runtime.method import FullGraphMethod, FullGraphOptions, Method, MethodOptions
    from harness.runtime.pipelined import PipelinedMethod, PipelinedOptions
    from harness.runtime.stale import TrainGraph
    from harness.runtime.stale_memory import stale_memory
    from harness.runtime.step import Loss, Step
    from harness.runtime.worker import Worker


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
