"""CAGNET: full-graph training by broadcasts."""

from .method import CAGNET

__all__ = ["CAGNET"]
