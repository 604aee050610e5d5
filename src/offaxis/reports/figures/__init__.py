"""Plain arrays and dicts -> figures: one file a figure, no state, no pyplot."""

from offaxis.reports.figures.histograms import Panel, histograms
from offaxis.reports.figures.image_sheet import image_sheet
from offaxis.reports.figures.ranking import ranking
from offaxis.reports.figures.roc import roc, roc_curve
from offaxis.reports.figures.save import as_png_data_uri, as_svg, save

__all__ = [
    "Panel",
    "as_png_data_uri",
    "as_svg",
    "histograms",
    "image_sheet",
    "ranking",
    "roc",
    "roc_curve",
    "save",
]
