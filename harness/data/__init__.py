"""Data sets, prepared graphs and their partitions."""
