"""Heads, the output layers of classifiers: features -> Outputs."""

from typing import TYPE_CHECKING

from offaxis.names import lazy

if TYPE_CHECKING:
    from offaxis.heads.base import Head as Head
    from offaxis.heads.base import Outputs as Outputs
    from offaxis.heads.cosine import CosineHead as CosineHead
    from offaxis.heads.elogitnorm import ELogitNormHead as ELogitNormHead
    from offaxis.heads.generalized_odin import DeConfHead as DeConfHead
    from offaxis.heads.isomax import IsoMaxHead as IsoMaxHead
    from offaxis.heads.linear import LinearHead as LinearHead
    from offaxis.heads.logitnorm import LogitNormHead as LogitNormHead
    from offaxis.heads.make import HeadLike as HeadLike
    from offaxis.heads.make import complete_description as complete_description
    from offaxis.heads.make import describe_head as describe_head
    from offaxis.heads.make import head_maker as head_maker
    from offaxis.heads.make import make_head as make_head
    from offaxis.heads.t2fnorm import T2FNormHead as T2FNormHead
    from offaxis.names import HEADS as HEADS

_HOMES = {
    "CosineHead": "offaxis.heads.cosine",
    "DeConfHead": "offaxis.heads.generalized_odin",
    "ELogitNormHead": "offaxis.heads.elogitnorm",
    "HEADS": "offaxis.names",
    "Head": "offaxis.heads.base",
    "HeadLike": "offaxis.heads.make",
    "IsoMaxHead": "offaxis.heads.isomax",
    "LinearHead": "offaxis.heads.linear",
    "LogitNormHead": "offaxis.heads.logitnorm",
    "Outputs": "offaxis.heads.base",
    "T2FNormHead": "offaxis.heads.t2fnorm",
    "complete_description": "offaxis.heads.make",
    "describe_head": "offaxis.heads.make",
    "head_maker": "offaxis.heads.make",
    "make_head": "offaxis.heads.make",
}
__all__ = [*_HOMES]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(__name__, _HOMES)
