"""Data sets, prepared graphs and their partitions."""

from harness.deferred import exports

__getattr__ = exports(__name__)[0]
