"""Samplers that several methods share, and what they are made of."""

from harness.deferred import exports

__getattr__ = exports(__name__)[0]
