"""Byte segmentation: byte i of every word, for each i, so that like bytes lie together.

VSOL's three forms (thesis §3.2.6): (1) each tensor's planes by
themselves; (2) plane i of all tensors of a record, one after the other, for each i; (3) the
same bytes as (2), made by joining the tensors first.
"""

from __future__ import annotations

from mvc.codecs import planes
from mvc.codecs.stages.base import CODINGS_2, WORDS, Kind, Stage
from mvc.codecs.streams import Bytes
from mvc.codecs.words import Words
from mvc.errors import InvalidPipeline

__all__ = ["Planes", "PlanesOfAll", "PlanesOfJoined"]


class Planes(Stage):
    """Byte i of every word, for each i: bytes of like meaning side by side."""

    usage = "planes[:all|concat]"
    about = "byte planes: of each tensor, or (all, concat) of all tensors of a record"
    takes = WORDS
    gives = Kind.STREAMS
    needs = "words, not bytes or streams, before it"

    @classmethod
    def read(cls, name: str, parameter: str) -> Stage:
        """``planes``, ``planes:all`` or ``planes:concat``."""
        kinds = {"": Planes, "all": PlanesOfAll, "concat": PlanesOfJoined}
        if parameter not in kinds:
            raise InvalidPipeline(
                f"stage {name}:{parameter} does not exist", hint="use planes:all or planes:concat"
            )
        return kinds[parameter](f"{name}:{parameter}" if parameter else name)

    def encode(self, data: Words) -> list[Bytes]:
        """One stream per byte of a word, lowest first (scratch)."""
        return planes.split(data)

    def decode(self, streams: list[Bytes | int], out: Words) -> None:
        """``out`` = the words whose bytes are ``streams``."""
        planes.join(streams, out)


class PlanesOfAll(Planes):
    """Planes over all tensors of a record (form 2)."""

    scope = "group"


class PlanesOfJoined(PlanesOfAll):
    """The same bytes from the tensors joined first (form 3)."""

    feature = CODINGS_2
