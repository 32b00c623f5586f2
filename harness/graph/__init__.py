"""What a layer runs on: blocks, matrices, partitions, and the kernels for them."""

from harness.deferred import moved

__getattr__ = moved(__name__)
