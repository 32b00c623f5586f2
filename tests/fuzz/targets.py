"""Every reader of what others wrote, by the name of its target."""

from __future__ import annotations

from support import raw_formats as raw

from harness.data.formats import planetoid
from harness.data.formats.published import read_dgl_reddit, read_graphsage, read_graphsaint, read_mislove, read_ogb

from .of_data import ArchiveTarget, NeutralTarget, PartsTarget, format_target, write_mislove
from .of_imports import IMPORTS
from .of_nodes import RendezvousTarget
from .of_results import BesideTarget, ClaimsTarget, EpochsTarget, LeaseTarget, RecordTarget
from .of_suites import OptionsTarget, SuiteTarget
from .target import Target

TARGETS: tuple[type[Target], ...] = (
    SuiteTarget,
    OptionsTarget,
    NeutralTarget,
    format_target("ogb-csv", "ogbn-arxiv", raw.write_ogb_csv, read_ogb),
    format_target("ogb-binary", "ogbn-papers100m", raw.write_ogb_binary, read_ogb),
    format_target("dgl-reddit", "reddit", raw.write_dgl_reddit, read_dgl_reddit),
    format_target("graphsage", "ppi", raw.write_graphsage, read_graphsage),
    format_target("graphsaint", "flickr", raw.write_graphsaint, read_graphsaint),
    format_target(
        "planetoid", "cora", lambda folder, graph: raw.write_planetoid(folder, "cora", graph), planetoid.read
    ),
    format_target("mislove", "youtube", write_mislove, read_mislove),
    *IMPORTS,
    ArchiveTarget,
    PartsTarget,
    RecordTarget,
    EpochsTarget,
    BesideTarget,
    ClaimsTarget,
    LeaseTarget,
    RendezvousTarget,
)
