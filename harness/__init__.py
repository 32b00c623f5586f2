"""Benchmark harness for distributed graph-neural-network training.

A method of one's own needs only the names in `__all__`; they are imported on first use, so that commands
which train nothing stay fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Arena": "harness.runtime.arena",
    "BlockSize": "harness.runtime.layer_memory",
    "CachePolicy": "harness.runtime.cache",
    "EdgeSampler": "harness.runtime.edge_sampler",
    "FullGraphMethod": "harness.runtime.method",
    "FullGraphOptions": "harness.runtime.method",
    "Loss": "harness.runtime.step",
    "MemoryCase": "harness.runtime.memory_model",
    "Mesh": "harness.runtime.broadcast",
    "Method": "harness.runtime.method",
    "MethodOptions": "harness.runtime.method",
    "PartSize": "harness.runtime.memory_model",
    "PipelinedMethod": "harness.runtime.pipelined",
    "PipelinedOptions": "harness.runtime.pipelined",
    "Step": "harness.runtime.step",
    "SyncExchange": "harness.runtime.exchange",
    "TrainGraph": "harness.runtime.stale",
    "View": "harness.runtime.view",
    "Worker": "harness.runtime.worker",
    "announce": "harness.runtime.exchange",
    "broadcast_block": "harness.runtime.broadcast",
    "evaluation_values": "harness.runtime.layer_memory",
    "full_graph_memory": "harness.runtime.memory_model",
    "load_epochs": "harness.results.frames",
    "load_results": "harness.results.frames",
    "matrices_memory": "harness.runtime.memory_model",
    "mini_batch_memory": "harness.runtime.memory_model",
    "rank_groups": "harness.runtime.broadcast",
    "sample_neighbours": "harness.graph.sampling",
    "stale_memory": "harness.runtime.stale_memory",
}
__all__ = [
    "Arena",
    "BlockSize",
    "CachePolicy",
    "EdgeSampler",
    "FullGraphMethod",
    "FullGraphOptions",
    "Loss",
    "MemoryCase",
    "Mesh",
    "Method",
    "MethodOptions",
    "PartSize",
    "PipelinedMethod",
    "PipelinedOptions",
    "Step",
    "SyncExchange",
    "TrainGraph",
    "View",
    "Worker",
    "announce",
    "broadcast_block",
    "evaluation_values",
    "full_graph_memory",
    "load_epochs",
    "load_results",
    "matrices_memory",
    "mini_batch_memory",
    "rank_groups",
    "sample_neighbours",
    "stale_memory",
]

if TYPE_CHECKING:
    from harness.graph.sampling import sample_neighbours
    from harness.results.frames import load_epochs, load_results
    from harness.runtime.arena import Arena
    from harness.runtime.broadcast import Mesh, broadcast_block, rank_groups
    from harness.runtime.cache import CachePolicy
    from harness.runtime.edge_sampler import EdgeSampler
    from harness.runtime.exchange import SyncExchange, announce
    from harness.runtime.layer_memory import BlockSize, evaluation_values
    from harness.runtime.memory_model import (
        MemoryCase,
        PartSize,
        full_graph_memory,
        matrices_memory,
        mini_batch_memory,
    )
    from harness.runtime.method import FullGraphMethod, FullGraphOptions, Method, MethodOptions
    from harness.runtime.pipelined import PipelinedMethod, PipelinedOptions
    from harness.runtime.stale import TrainGraph
    from harness.runtime.stale_memory import stale_memory
    from harness.runtime.step import Loss, Step
    from harness.runtime.view import View
    from harness.runtime.worker import Worker


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
