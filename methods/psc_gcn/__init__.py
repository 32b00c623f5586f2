"""PSC-GCN: pipelined training on sampled edges."""

from .method import PSCGCN

__all__ = ["PSCGCN"]
