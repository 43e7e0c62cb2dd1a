"""What a running commit builds on must still be there when it publishes.

A commit reuses objects that the repository holds and codes others against them.
Maintenance that ran beside it may have collected them. So under the journal's lock, if the
journal was replaced since the commit began, every such object is looked up once more;
a commit that was outrun begins anew.
"""

from __future__ import annotations

from mvc.errors import DamagedData
from mvc.limits import PIECE
from mvc.model.manifest import Manifest
from mvc.store.graph.search import Graph
from mvc.store.publishing.publish import ConcurrentRewrite
from mvc.store.writing.object_writer import ObjectWriter

__all__ = ["check_reused"]


def check_reused(graph: Graph, writer: ObjectWriter, manifest: Manifest) -> None:
    """Raises ConcurrentRewrite unless every object of the version can be recovered."""
    sizes: dict[bytes, int] = {manifest.id: 0}
    for entry in manifest.entries:
        sizes.update((content.id, content.spec.nbytes) for content in entry.contents)
        if entry.skeleton is not None:
            sizes[entry.skeleton] = 0
    needed = {id_ for id_ in sizes if not writer.added(id_)} | writer.bases
    try:
        for id_ in needed:
            starts = {step.member.start for step in graph.codings(id_)}
            if starts < set(range(0, max(sizes.get(id_, 1), 1), PIECE)):
                raise ConcurrentRewrite
            for start in starts:
                graph.path(id_, start)
    except DamagedData as error:
        raise ConcurrentRewrite from error
