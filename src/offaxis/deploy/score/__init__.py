"""Many images -> a file of rows: ``offaxis score``."""

from offaxis.deploy.score.run import Options, score

__all__ = ["Options", "score"]
