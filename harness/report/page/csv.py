"""Frames as CSV."""

from __future__ import annotations

import json

import pandas as pd


def to_csv(frame: pd.DataFrame) -> bytes:
    """Return a frame as CSV; mappings and lists as JSON, missing values empty."""
    flat = frame.copy()
    for column in flat.columns:
        if flat[column].dtype == object:
            flat[column] = [json.dumps(v) if isinstance(v, dict | list) else v for v in flat[column]]
    return flat.to_csv(index=False).encode()
