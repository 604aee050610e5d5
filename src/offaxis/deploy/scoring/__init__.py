"""Score many images: files, folders and archives -> a table of predictions, as ``offaxis score`` writes it."""

from offaxis.deploy.scoring.run import ScoringOptions, score_images

__all__ = ["ScoringOptions", "score_images"]
