"""Data sets, prepared graphs and their partitions."""

from harness.deferred import moved

__getattr__ = moved(__name__)
