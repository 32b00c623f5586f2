"""What a layer runs on: blocks, matrices, partitions, and the kernels for them."""
