"""Many images -> a file of rows: ``offaxis score``."""

from offaxis.deploy.scoring.run import Options, score

__all__ = ["Options", "score"]
