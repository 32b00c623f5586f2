"""What a layer runs on: blocks, matrices, partitions, and the kernels for them."""

from harness.deferred import exports

__getattr__ = exports(__name__)[0]
