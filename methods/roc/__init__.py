"""ROC: full-graph training in more memory than the device has."""

from .method import ROC

__all__ = ["ROC"]
