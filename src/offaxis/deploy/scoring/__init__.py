"""Many images -> a file of rows: ``offaxis score``."""

from offaxis.deploy.scoring.run import ScoringOptions, score_images

__all__ = ["ScoringOptions", "score_images"]
