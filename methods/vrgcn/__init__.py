"""VR-GCN: few neighbours, and historical activations as control variate."""

from .method import VRGCN

__all__ = ["VRGCN"]
