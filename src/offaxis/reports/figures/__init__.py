"""Plain arrays and dicts -> figures: one file a figure, no state, no pyplot."""

from offaxis.reports.figures.dependency import dependency, dependency_full, dependency_matrix
from offaxis.reports.figures.embedding import tsne
from offaxis.reports.figures.feature_spaces import Space, feature_spaces
from offaxis.reports.figures.fixed_scale import fixed_scale
from offaxis.reports.figures.frames import frames
from offaxis.reports.figures.head_diagram import head_diagram
from offaxis.reports.figures.histograms import Panel, histograms
from offaxis.reports.figures.image_sheet import image_sheet
from offaxis.reports.figures.less_biased import less_biased_bars
from offaxis.reports.figures.ranking import ranking
from offaxis.reports.figures.reliability import reliability, risk_coverage, risk_coverage_curve
from offaxis.reports.figures.roc import roc, roc_curve
from offaxis.reports.figures.save import as_png_data_uri, as_svg, save
from offaxis.reports.figures.score_grid import score_grid

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
    "risk_coverage",
    "risk_coverage_curve",
    "roc",
    "roc_curve",
    "save",
    "score_grid",
    "tsne",
]
