"""Layers, and the model that is made of them."""

from harness.deferred import moved

__getattr__ = moved(__name__)
