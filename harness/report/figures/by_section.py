"""The figures of one section."""

from __future__ import annotations

from collections.abc import Callable

from harness.report.chapters.layers import layer_figure
from harness.report.chapters.options import options_figure
from harness.report.chapters.overlap import staleness_figure
from harness.report.chapters.pareto import pareto_figure
from harness.report.chapters.parts import parts_figure
from harness.report.chapters.peers import peer_figure
from harness.report.chapters.scaling import scaling_figure
from harness.report.chapters.targets import target_figure
from harness.report.figures.bars import memory_figure, throughput_figure, use_figure
from harness.report.figures.convergence import convergence_figure
from harness.report.figures.drawing import Picture, style
from harness.report.figures.sampling import batch_figure, cache_figure, sampling_figure
from harness.report.figures.stacks import breakdown_figure, traffic_figure
from harness.report.trials.sections import Section


def section_figures(section: Section) -> dict[str, Picture]:
    """Draw the figures of a section, by the heading they stand under; one without data is left out."""
    drawn: dict[str, Callable[[Section], Picture | None]] = {
        "time": throughput_figure,
        "scaling": scaling_figure,
        "breakdown": breakdown_figure,
        "overlap": staleness_figure,
        "traffic": traffic_figure,
        "peers": peer_figure,
        "sampling": sampling_figure,
        "batches": batch_figure,
        "layers": layer_figure,
        "cache": cache_figure,
        "memory": memory_figure,
        "use": use_figure,
        "convergence": convergence_figure,
        "targets": target_figure,
        "pareto": pareto_figure,
        "options": options_figure,
        "partition": parts_figure,
    }
    with style():
        pictures = {name: draw(section) for name, draw in drawn.items()}
    return {name: picture for name, picture in pictures.items() if picture}
