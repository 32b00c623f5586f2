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
    "Batch": "harness.runtime.batches",
    "BlockSize": "harness.runtime.layer_memory",
    "Bytes": "harness.runtime.bytes_model",
    "BytesCase": "harness.runtime.bytes_model",
    "CachePolicy": "harness.runtime.cache",
    "ColumnStore": "harness.runtime.column_store",
    "Drawn": "harness.runtime.minibatch",
    "EdgeSampler": "harness.runtime.edge_sampler",
    "ExplainSpec": "harness.explain.masks",
    "Explainer": "harness.explain.explainer",
    "ExplanationGraph": "harness.explain.graph",
    "FanoutSampler": "harness.runtime.samplers",
    "FeatureStore": "harness.runtime.features",
    "FullGraphMethod": "harness.runtime.method",
    "FullGraphOptions": "harness.runtime.method",
    "GNN": "harness.models.gnn",
    "GlobalSampler": "harness.graph.layer_sampling",
    "Guidance": "harness.explain.explainer",
    "GuidedSampler": "harness.runtime.samplers",
    "HistorySample": "harness.graph.history",
    "HostStore": "harness.runtime.features",
    "LayerSample": "harness.graph.layer_sample",
    "LayerSampler": "harness.graph.layer_sampling",
    "LayerwiseSampler": "harness.runtime.samplers",
    "Loaded": "harness.runtime.minibatch",
    "Loss": "harness.runtime.step",
    "MemoryCase": "harness.runtime.memory_model",
    "Mesh": "harness.runtime.broadcast",
    "Method": "harness.runtime.method",
    "MethodOptions": "harness.runtime.method",
    "MiniBatchMethod": "harness.runtime.minibatch",
    "MiniBatchOptions": "harness.runtime.minibatch",
    "NodeBatchOptions": "harness.runtime.minibatch",
    "NodeSampler": "harness.graph.node_sampling",
    "PartSize": "harness.runtime.memory_model",
    "PipelinedMethod": "harness.runtime.pipelined",
    "PipelinedOptions": "harness.runtime.pipelined",
    "RowStore": "harness.runtime.features",
    "Sample": "harness.runtime.source",
    "Sampler": "harness.runtime.source",
    "Skew": "harness.graph.skew",
    "Source": "harness.runtime.source",
    "Step": "harness.runtime.step",
    "SubgraphSampler": "harness.runtime.samplers",
    "Communicator": "harness.runtime.comm",
    "SubgraphOptions": "harness.runtime.subgraphs",
    "SubgraphDraws": "harness.runtime.subgraphs",
    "SyncExchange": "harness.runtime.exchange",
    "TrainGraph": "harness.runtime.stale",
    "View": "harness.runtime.view",
    "Worker": "harness.runtime.worker",
    "announce": "harness.runtime.exchange",
    "batch_rows": "harness.runtime.samplers",
    "batch_seed": "harness.graph.random",
    "boundary_bytes": "harness.runtime.bytes_model",
    "broadcast_block": "harness.runtime.broadcast",
    "clusters": "harness.graph.subgraph",
    "common_order": "harness.runtime.batches",
    "draw_neighbours": "harness.graph.sampling",
    "drawn_memory": "harness.runtime.samplers",
    "epoch_order": "harness.runtime.batches",
    "evaluation_values": "harness.runtime.layer_memory",
    "explanation_memory": "harness.explain.memory",
    "full_graph_memory": "harness.runtime.memory_model",
    "inclusion": "harness.graph.poisson",
    "induce": "harness.graph.subgraph",
    "largest_blocks": "harness.runtime.samplers",
    "load_epochs": "harness.results.frames",
    "load_results": "harness.results.frames",
    "make_batches": "harness.runtime.batches",
    "matrices_memory": "harness.runtime.memory_model",
    "mini_batch_bytes": "harness.runtime.bytes_model",
    "mini_batch_memory": "harness.runtime.memory_model",
    "node_batches": "harness.runtime.batches",
    "per_layer": "harness.runtime.samplers",
    "propagation_scales": "harness.graph.layer_sample",
    "rank_groups": "harness.runtime.broadcast",
    "stale_memory": "harness.runtime.stale_memory",
    "subgraph_batches": "harness.runtime.batches",
    "subgraph_blocks": "harness.runtime.samplers",
    "subgraph_memory": "harness.runtime.samplers",
    "with_history": "harness.graph.history",
}
__all__ = [
    "GNN",
    "Arena",
    "Batch",
    "BlockSize",
    "Bytes",
    "BytesCase",
    "CachePolicy",
    "ColumnStore",
    "Communicator",
    "Drawn",
    "EdgeSampler",
    "ExplainSpec",
    "Explainer",
    "ExplanationGraph",
    "FanoutSampler",
    "FeatureStore",
    "FullGraphMethod",
    "FullGraphOptions",
    "GlobalSampler",
    "Guidance",
    "GuidedSampler",
    "HistorySample",
    "HostStore",
    "LayerSample",
    "LayerSampler",
    "LayerwiseSampler",
    "Loaded",
    "Loss",
    "MemoryCase",
    "Mesh",
    "Method",
    "MethodOptions",
    "MiniBatchMethod",
    "MiniBatchOptions",
    "NodeBatchOptions",
    "NodeSampler",
    "PartSize",
    "PipelinedMethod",
    "PipelinedOptions",
    "RowStore",
    "Sample",
    "Sampler",
    "Skew",
    "Source",
    "Step",
    "SubgraphDraws",
    "SubgraphOptions",
    "SubgraphSampler",
    "SyncExchange",
    "TrainGraph",
    "View",
    "Worker",
    "announce",
    "batch_rows",
    "batch_seed",
    "boundary_bytes",
    "broadcast_block",
    "clusters",
    "common_order",
    "draw_neighbours",
    "drawn_memory",
    "epoch_order",
    "evaluation_values",
    "explanation_memory",
    "full_graph_memory",
    "inclusion",
    "induce",
    "largest_blocks",
    "load_epochs",
    "load_results",
    "make_batches",
    "matrices_memory",
    "mini_batch_bytes",
    "mini_batch_memory",
    "node_batches",
    "per_layer",
    "propagation_scales",
    "rank_groups",
    "stale_memory",
    "subgraph_batches",
    "subgraph_blocks",
    "subgraph_memory",
    "with_history",
]

if TYPE_CHECKING:
    from harness.explain.explainer import Explainer, Guidance
    from harness.explain.graph import ExplanationGraph
    from harness.explain.masks import ExplainSpec
    from harness.explain.memory import explanation_memory
    from harness.graph.history import HistorySample, with_history
    from harness.graph.layer_sample import LayerSample, propagation_scales
    from harness.graph.layer_sampling import GlobalSampler, LayerSampler
    from harness.graph.node_sampling import NodeSampler
    from harness.graph.poisson import inclusion
    from harness.graph.random import batch_seed
    from harness.graph.sampling import draw_neighbours
    from harness.graph.skew import Skew
    from harness.graph.subgraph import clusters, induce
    from harness.models.gnn import GNN
    from harness.results.frames import load_epochs, load_results
    from harness.runtime.arena import Arena
    from harness.runtime.batches import (
        Batch,
        common_order,
        epoch_order,
        make_batches,
        node_batches,
        subgraph_batches,
    )
    from harness.runtime.broadcast import Mesh, broadcast_block, rank_groups
    from harness.runtime.bytes_model import Bytes, BytesCase, boundary_bytes, mini_batch_bytes
    from harness.runtime.cache import CachePolicy
    from harness.runtime.column_store import ColumnStore
    from harness.runtime.comm import Communicator
    from harness.runtime.edge_sampler import EdgeSampler
    from harness.runtime.exchange import SyncExchange, announce
    from harness.runtime.features import FeatureStore, HostStore, RowStore
    from harness.runtime.layer_memory import BlockSize, evaluation_values
    from harness.runtime.memory_model import (
        MemoryCase,
        PartSize,
        full_graph_memory,
        matrices_memory,
        mini_batch_memory,
    )
    from harness.runtime.method import FullGraphMethod, FullGraphOptions, Method, MethodOptions
    from harness.runtime.minibatch import Drawn, Loaded, MiniBatchMethod, MiniBatchOptions, NodeBatchOptions
    from harness.runtime.pipelined import PipelinedMethod, PipelinedOptions
    from harness.runtime.samplers import (
        FanoutSampler,
        GuidedSampler,
        LayerwiseSampler,
        SubgraphSampler,
        batch_rows,
        drawn_memory,
        largest_blocks,
        per_layer,
        subgraph_blocks,
        subgraph_memory,
    )
    from harness.runtime.source import Sample, Sampler, Source
    from harness.runtime.stale import TrainGraph
    from harness.runtime.stale_memory import stale_memory
    from harness.runtime.step import Loss, Step
    from harness.runtime.subgraphs import SubgraphDraws, SubgraphOptions
    from harness.runtime.view import View
    from harness.runtime.worker import Worker


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
