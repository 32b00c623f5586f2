"""What layers run on: partitions, blocks and sparse kernels."""
