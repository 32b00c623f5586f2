"""What a GPU has to show: `python -m tools.gpu` gathers it in one folder, `tools.gpu.page` makes docs/gpu.md of it."""
