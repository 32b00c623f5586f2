"""Hostile input: every reader accepts it or refuses it in clean lines, in bounded time and memory, and runs nothing.

`python -m tests.fuzz --count 100000` gives every target so many inputs; see `targets.py` for what they are.
"""
