"""Datasets by name, file formats, generated graphs, partitioning and their cache."""
