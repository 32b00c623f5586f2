"""What a rank runs."""

from harness.deferred import moved

__getattr__ = moved(__name__)
