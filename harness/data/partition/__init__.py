"""Partitioners, and the partitions that they make, built once and kept."""
