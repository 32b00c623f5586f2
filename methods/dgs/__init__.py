"""DGS: sampling of nodes and features guided by explanations."""

from .method import DGS

__all__ = ["DGS"]
