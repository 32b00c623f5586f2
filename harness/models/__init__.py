"""Models: graph layers, then linear ones."""
