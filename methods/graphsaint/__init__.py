"""GraphSAINT: training on subgraphs that are drawn by nodes, edges, walks and frontiers."""

from .method import GraphSAINT

__all__ = ["GraphSAINT"]
