"""Figures of plain arrays and dicts, without state and without pyplot."""

from offaxis.reports.figures.less_biased import dependency, dependency_full, dependency_matrix, frames, less_biased_bars
from offaxis.reports.figures.method import Space, feature_spaces, head_diagram, tsne
from offaxis.reports.figures.scores import (
    Panel,
    fixed_scale,
    histograms,
    image_sheet,
    ranking,
    reliability,
    risk_coverage_curves,
    roc,
)
from offaxis.reports.figures.style import as_png_data_uri, as_svg, save_figure

__all__ = [
    "Panel",
    "Space",
    "as_png_data_uri",
    "as_svg",
    "dependency",
    "dependency_full",
    "dependency_matrix",
    "feature_spaces",
    "fixed_scale",
    "frames",
    "head_diagram",
    "histograms",
    "image_sheet",
    "less_biased_bars",
    "ranking",
    "reliability",
    "risk_coverage_curves",
    "roc",
    "save_figure",
    "tsne",
]
