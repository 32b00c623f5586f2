"""Figures of a report."""
