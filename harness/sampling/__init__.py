"""Samplers that several methods share, and what they are made of."""

from harness.deferred import moved

__getattr__ = moved(__name__)
