"""Public names of the modules that connect to other repositories or serve a repository.

Each name is imported on first use, so that commands start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.faces import face

if TYPE_CHECKING:
    from mvc.api.opening import serve
    from mvc.remote import scopes, slices, wire
    from mvc.remote.remotes import Remote, remote_at
    from mvc.remote.replicas.replica import Replica
    from mvc.remote.replicas.versions import FollowedVersion, Update
    from mvc.remote.slices import NodeReport, Sent, decode_entries, encode_entries
    from mvc.remote.transport import Place, Received, Slice, Transport, Wanted
    from mvc.remote.transports.folder import account, load_transfers
    from mvc.remote.transports.opening import open_transport
    from mvc.repo.checkout.outputs import names_folder

__all__ = [
    "FollowedVersion",
    "NodeReport",
    "Place",
    "Received",
    "Remote",
    "Replica",
    "Sent",
    "Slice",
    "Transport",
    "Update",
    "Wanted",
    "account",
    "decode_entries",
    "encode_entries",
    "load_transfers",
    "names_folder",
    "open_transport",
    "remote_at",
    "scopes",
    "serve",
    "slices",
    "wire",
]

_IN = {
    "FollowedVersion": "mvc.remote.replicas.versions",
    "NodeReport": "mvc.remote.slices",
    "Place": "mvc.remote.transport",
    "Received": "mvc.remote.transport",
    "Remote": "mvc.remote.remotes",
    "Replica": "mvc.remote.replicas.replica",
    "Sent": "mvc.remote.slices",
    "Slice": "mvc.remote.transport",
    "Transport": "mvc.remote.transport",
    "Update": "mvc.remote.replicas.versions",
    "Wanted": "mvc.remote.transport",
    "account": "mvc.remote.transports.folder",
    "decode_entries": "mvc.remote.slices",
    "encode_entries": "mvc.remote.slices",
    "load_transfers": "mvc.remote.transports.folder",
    "names_folder": "mvc.repo.checkout.outputs",
    "open_transport": "mvc.remote.transports.opening",
    "remote_at": "mvc.remote.remotes",
    "scopes": "mvc.remote.scopes",
    "serve": "mvc.api.opening",
    "slices": "mvc.remote.slices",
    "wire": "mvc.remote.wire",
}

__getattr__ = face(__name__, _IN)
