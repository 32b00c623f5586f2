"""What the generators share: their options, communities, features, labels and splits.

A generator is a module of a data set that is made, not read. `make(**options)` returns the graph, the same for
equal options, and raises UserError for an option that is unknown, ill-typed or out of range; every generator also
takes `work: Path`, a directory in which it may keep a feature matrix that it then returns memory-mapped.
`info(options)` says what `make` would return, without making it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from harness.data.catalog import DatasetInfo, Option, Sizes
from harness.data.partition.view import Ints
from harness.deferred import numpy as np
from harness.errors import UserError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")


def option(default: Any, summary: str, low: float | None = None, high: float | None = None) -> Any:
    """Return a dataclass field with help and a closed range."""
    return field(default=default, metadata={"summary": summary, "low": low, "high": high})


def options_of(settings: type) -> dict[str, Option]:
    """Read the options off a dataclass whose fields are made by `option`."""
    hints = get_type_hints(settings)
    return {f.name: Option(hints[f.name], f.default, f.metadata["summary"]) for f in fields(settings)}


def made(name: str, sizes: Sizes, settings: type, summary: str, **others: Any) -> DatasetInfo:
    """What is known of a set that is made with `settings`; `others`: fields that are not those of most."""
    others = {"source": "generated here", "origin": "generated"} | others
    return DatasetInfo(name, *sizes, options=options_of(settings), summary=summary, size_bytes=0, **others)


def resolve(settings: type[T], name: str, options: Mapping[str, Any]) -> T:
    """Return `settings(**options)`; UserError names the option of data set `name` that does not fit."""
    hints = get_type_hints(settings)
    known = {f.name: f for f in fields(settings)}  # type: ignore[arg-type]
    values = {}
    for key, value in options.items():
        if key not in known:
            raise UserError(f"unknown option '{key}'", key=f"dataset {name}", fix=nearest(key, known))
        values[key] = _checked(f"dataset {name}: {key}", value, hints[key], known[key])
    return settings(**values)


def _checked(key: str, value: Any, kind: type, about: Field[Any]) -> Any:
    fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not fits:
        raise UserError(f"{value!r} is not of type {kind.__name__}", key=key, fix=f"e.g. {about.default!r}")
    low, high = about.metadata["low"], about.metadata["high"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        span = f"{'...' if low is None else low} to {'...' if high is None else high}"
        raise UserError(f"{value!r} is out of range", key=key, fix=span)
    return kind(value)


BLOCK = 1 << 14  # feature rows made at a time
GENERATED = {"origin": "generated", "note": "generated"}  # what a graph says of itself that is like no other


def communities(rng: np.random.Generator, nodes: int, count: int, skew: float = 0.0) -> Ints:
    """int64 [nodes]: sizes ~ 1 / rank^skew in random order, none empty if nodes >= count."""
    share = rng.permutation(np.arange(1, count + 1) ** -skew)
    bounds = np.concatenate([[0.0], np.cumsum(share / share.sum())]) * (nodes - min(count, nodes))
    sizes: Ints = np.diff(np.round(bounds)).astype(np.int64) + (np.arange(count) < nodes)
    return rng.permutation(np.repeat(np.arange(count), sizes))


def noisy_features(
    community: Ints, width: int, noise: float, seed: int, work: Path | None = None
) -> NDArray[np.float32]:
    """float32 [N, width]: the centre of the node's community plus Gaussian noise.

    Centres are Gaussian with expected norm 1; the noise has standard deviation `noise` in every dimension,
    so two classes are about sqrt(2) / noise standard deviations apart, whatever the width. With `work`
    the array is `work/features.npy`, memory-mapped, and never whole in memory.
    """
    rng = np.random.default_rng([seed, 0])
    centres = (rng.standard_normal((int(community.max()) + 1, width)) / width**0.5).astype(np.float32)
    out = _feature_rows((community.size, width), work)
    for block, start in enumerate(range(0, community.size, BLOCK)):
        rows = out[start : start + BLOCK]
        rng = np.random.default_rng([seed, 1, block])
        drawn = rng.standard_normal(rows.shape, dtype=np.float32)
        drawn *= np.float32(noise)
        drawn += centres[community[start : start + BLOCK]]
        rows[:] = drawn
    return out


def _feature_rows(shape: tuple[int, int], work: Path | None) -> NDArray[np.float32]:
    if work is None:
        return np.zeros(shape, np.float32)
    return np.lib.format.open_memmap(work / "features.npy", mode="w+", dtype=np.float32, shape=shape)


def class_labels(rng: np.random.Generator, community: Ints, classes: int, flipped: float) -> Ints:
    """int64 [N]: the community, but for the share `flipped` of nodes another class drawn uniformly.

    Neither graph nor features show a flipped label, so 1 - `flipped` bounds the accuracy.
    """
    shift = rng.integers(1, classes, community.size) if classes > 1 else 0
    return np.where(rng.random(community.size) < flipped, (community + shift) % classes, community)


def label_sets(
    rng: np.random.Generator, community: Ints, classes: int, *, active: float = 0.15, rate: float = 0.75
) -> NDArray[np.uint8]:
    """uint8 [N, classes]: each label is active in a share `active` of the communities (in one at least).

    A node has a label active in its community with probability `rate`, any other with 0.02.
    """
    count = int(community.max()) + 1
    on = rng.random((count, classes)) < active
    on[rng.integers(0, count, classes), np.arange(classes)] = True
    chance = np.where(on, rate, 0.02).astype(np.float32)
    out = np.empty((community.size, classes), np.uint8)
    for start in range(0, community.size, BLOCK):
        block = community[start : start + BLOCK]
        out[start : start + BLOCK] = rng.random((block.size, classes), dtype=np.float32) < chance[block]
    return out


def group_features(
    community: Ints, users: Ints, width: int, noise: float, seed: int, work: Path | None = None
) -> NDArray[np.float32]:
    """float32 [N, width]: member (1) or not (0) of each of `width` groups; nodes not in `users` are in none.

    A user is expected in 1.5 groups of its community and, at `noise` 1, in 1.5 at random. `work` as in
    `noisy_features`.
    """
    out = _feature_rows((community.size, width), work)
    count = int(community.max()) + 1
    rng = np.random.default_rng([seed, 0])
    member = group_members(rng, community[users], width, min(1.5 * count / width, 1.0), 1.5 * noise / width)
    for start in range(0, users.size, BLOCK):
        out[users[start : start + BLOCK]] = member[start : start + BLOCK]
    return out


def group_members(
    rng: np.random.Generator, community: Ints, groups: int, own: float, stray: float
) -> NDArray[np.uint8]:
    """uint8 [N, groups]: memberships in groups of users; every group is at home in one community.

    A node is in a group of its own community with probability `own`, in any other with `stray`. Communities
    have equally many groups, if there are enough of them.
    """
    home = rng.permutation(np.arange(groups) % (int(community.max()) + 1))
    out = np.empty((community.size, groups), np.uint8)
    for start in range(0, community.size, BLOCK):
        block = community[start : start + BLOCK, None]
        drawn = rng.random((len(block), groups), dtype=np.float32)
        out[start : start + BLOCK] = drawn < np.where(block == home, own, stray).astype(np.float32)
    return out


def split_masks(rng: np.random.Generator, nodes: int, shares: Sequence[float]) -> list[NDArray[np.bool_]]:
    """Disjoint random bool [nodes] masks (train, val, test) of the given shares; the rest is in none."""
    order = rng.permutation(nodes)
    bounds = np.round(np.concatenate([[0.0], np.cumsum(shares)]).clip(max=1.0) * nodes).astype(np.int64)
    masks = [np.zeros(nodes, np.bool_) for _ in shares]
    for mask, start, stop in zip(masks, bounds[:-1], bounds[1:], strict=True):
        mask[order[start:stop]] = True
    return masks


def degree_weights(
    rng: np.random.Generator, nodes: int, shape: str, parameter: float, largest: float
) -> NDArray[np.float64]:
    """float64 [nodes] with mean about 1, none above `largest`.

    shape "lognormal": `parameter` = standard deviation of the logarithm; "powerlaw": density ~ w^-parameter.
    """
    if shape == "lognormal":
        weight: NDArray[np.float64] = np.exp(parameter * rng.standard_normal(nodes))
    else:
        weight = (1.0 - rng.random(nodes)) ** (-1.0 / (parameter - 1.0))
    return np.minimum(weight / float(weight.mean()), largest)
