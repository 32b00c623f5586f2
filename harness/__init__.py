"""Benchmark harness for distributed graph-neural-network training."""

__version__ = "0.1.0"
