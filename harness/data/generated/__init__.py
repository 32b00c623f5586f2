"""What the generators share: their options, communities, features, labels and splits.

A generator is a module of a data set that is made, not read. `make(**options)` returns the graph, the same for
equal options, and raises UserError for an option that is unknown, ill-typed or out of range; every generator also
takes `work: Path`, a directory in which it may keep a feature matrix that it then returns memory-mapped.
`info(options)` says what `make` would return, without making it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from harness.data.catalog import DatasetInfo, Option, Sizes
from harness.data.partition.view import Ints
from harness.deferred import numpy as np
from harness.errors import UserError, nearest
from harness.spec import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Settings(Spec, strict=True):
    """Options of a generator: fields with a default, a range (`ge`, `le`) and a `description`."""


T = TypeVar("T", bound=Settings)


def made(name: str, sizes: Sizes, settings: type[Settings], summary: str, **others: Any) -> DatasetInfo:
    """What is known of a set that is made with `settings`; `others`: fields that are not those of most."""
    found = settings.model_fields.items()
    options = {key: Option(about.annotation, about.default, about.description or "") for key, about in found}
    others = {"source": "generated here", "origin": "generated"} | others
    return DatasetInfo(name, *sizes, options=options, summary=summary, size_bytes=0, **others)


def resolve(settings: type[T], name: str, options: Mapping[str, Any]) -> T:
    """Return `settings(**options)`; UserError names the option of data set `name` that does not fit."""
    try:
        return settings(**options)
    except ValidationError as error:
        wrong = error.errors()[0]
        key, value = str(wrong["loc"][0]), wrong["input"]
        if wrong["type"] == "extra_forbidden":
            fix = nearest(key, settings.model_fields)
            raise UserError(f"unknown option '{key}'", key=f"dataset {name}", fix=fix) from error
        about, where = settings.model_fields[key], f"dataset {name}: {key}"
        if wrong["type"] in ("greater_than_equal", "less_than_equal", "finite_number"):
            limits = {
                type(limit).__name__: getattr(limit, type(limit).__name__.lower(), None) for limit in about.metadata
            }
            span = f"{limits.get('Ge', '...')} to {limits.get('Le', '...')}"
            raise UserError(f"{value!r} is out of range", key=where, fix=span) from error
        kind = getattr(about.annotation, "__name__", about.annotation)
        raise UserError(f"{value!r} is not of type {kind}", key=where, fix=f"e.g. {about.default!r}") from error


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


def class_labels(rng: np.random.Generator, community: Ints, classes: int, flipped: NDArray[np.float64]) -> Ints:
    """int64 [N]: the community, but with the chance `flipped` of each node another class drawn uniformly.

    Neither graph nor features show a flipped label, so 1 less the mean of `flipped` bounds the accuracy.
    """
    shift = rng.integers(1, classes, community.size) if classes > 1 else 0
    return np.where(rng.random(community.size) < flipped, (community + shift) % classes, community)


def label_sets(rng: np.random.Generator, community: Ints, classes: int, flipped: float = 0.02) -> NDArray[np.uint8]:
    """uint8 [N, classes]: each label is active in 15 % of the communities (in one at least).

    A node has a label active in its community with probability 0.75, or 1 - 12.5 `flipped` if that is more, any other
    with `flipped`. The best micro F1 is about 0.98, 0.8, 0.65 with 0.0016, 0.02, 0.1.
    """
    count = int(community.max()) + 1
    on = rng.random((count, classes)) < 0.15
    on[rng.integers(0, count, classes), np.arange(classes)] = True
    chance = np.where(on, max(0.75, 1 - 12.5 * flipped), flipped).astype(np.float32)
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
