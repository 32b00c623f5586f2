"""Meters: memory, utilisation and energy of a rank, sampled beside its training."""

from harness.runtime.meters.meters import Meters

__all__ = ["Meters"]
