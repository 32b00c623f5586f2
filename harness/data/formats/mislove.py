"""Mislove's YouTube (IMC 2007): `youtube-links.txt.gz` and `youtube-groupmemberships.txt.gz`.

Lines are `user user` and `user group`. The crawl has neither features nor labels; they are made from the
users' groups as in the skewed-sampling paper (section 5.1). Labels: member or not of each of the 64 largest
groups. Features: member or not of 2,048 groups drawn (seed 0) from the 4,096 largest. Those hold the label
groups too, as the paper says it: about half of a user's labels are among its own features. Only users in
some group are in the split: 90 % of them train; the paper tests on the rest, which is halved here into
validation and test so that no score is chosen on the test set. Every link counts in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from harness.data.catalog import Bounds
from harness.data.formats.files import csr, csv_chunks, dense_chunks, mask, spool_features
from harness.data.graph import Array, GraphData
from harness.errors import DataError

FILES = ("youtube-links.txt.gz", "youtube-groupmemberships.txt.gz")
LABEL_GROUPS, FEATURE_GROUPS, FEATURE_POOL = 64, 2048, 4096
_MAX_ID = 1 << 28


def read(source: Path, name: str, work: Path) -> GraphData:
    """Read the two files of the directory `source`; users are numbered from 1 there, from 0 here."""
    links, memberships = (source / file for file in FILES)
    bounds = Bounds.of(name)
    users, groups = np.concatenate(list(_pairs(memberships, bounds))).T
    nodes = max(max((int(chunk.max()) for chunk in _pairs(links, bounds)), default=1), int(users.max()))

    edges = csr(lambda: ((pairs[:, 0] - 1, pairs[:, 1] - 1) for pairs in _pairs(links, bounds)), nodes, links)
    member = sp.csr_matrix((np.ones(len(users), np.float32), (users - 1, groups - 1)), (nodes, int(groups.max())))
    member.data[:] = 1  # a membership listed twice was summed
    # Stable order: of equally large groups the lower number comes first.
    largest = np.argsort(-np.diff(member.tocsc().indptr), kind="stable")
    rng = np.random.default_rng(0)
    pool = largest[:FEATURE_POOL]
    chosen = np.sort(rng.choice(pool, min(FEATURE_GROUPS, len(pool)), replace=False))
    grouped = rng.permutation(np.flatnonzero(np.diff(member.indptr)))
    if len(grouped) < 3:
        raise DataError(f"only {len(grouped)} users are in a group", file=memberships)
    cuts = np.split(grouped, [int(0.9 * len(grouped)), int(0.95 * len(grouped))])
    split = [mask(ids, nodes, memberships, "drawn") for ids in cuts]
    wide = member[:, chosen]
    features = spool_features(dense_chunks(wide), wide.shape, work, memberships)
    labels = member[:, largest[:LABEL_GROUPS]].toarray().astype(np.uint8)
    known, note = (labels, labels.shape[1], True), "labels and features made from groups"
    return GraphData.of(name, csr=edges, features=features, labels=known, split=split, note=note)


def _pairs(file: Path, bounds: Bounds) -> Iterator[Array]:
    for pairs in csv_chunks(file, np.int64, bounds.edges, 2, separator=r"\s+"):
        if pairs.shape[1] != 2 or pairs.min() < 1 or pairs.max() > _MAX_ID:
            raise DataError("expected two numbers from 1 on in each line", file=file)
        bounds.check(file, nodes=int(pairs.max()))  # there are fewer groups than users
        yield pairs
