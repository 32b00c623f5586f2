"""Layers, and the model that is made of them."""

from harness.deferred import exports

__getattr__ = exports(__name__)[0]
