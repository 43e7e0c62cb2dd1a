"""All limits of the program (docs/limits.md).

Sizes are bytes unless the name says otherwise. Input is checked against these limits before memory
is allocated.
"""

from __future__ import annotations

MIB = 1 << 20

# model
MAX_NAME_BYTES = 1024  # one tensor key or path
MAX_PART_BYTES = 255  # one folder or file name of a path
MAX_REF_BYTES = 200  # branch, tag, target
MAX_REMOTE_BYTES = 32  # the name of a remote
MAX_TRACKING_BYTES = MAX_REF_BYTES + 48  # the tracking ref of a remote's branch or tag
MAX_URL = 4096
MAX_DIMENSIONS = 64
MAX_TENSORS = 1_000_000  # per file
MAX_MANIFEST = 256 * MIB
MAX_COMMIT = 4 * MIB  # canonical bytes of one commit, including its message and metrics
MAX_MESSAGE = MIB
MAX_METRICS = 1000
MAX_ATTACHED = 1000  # attachments of one version
MAX_ATTACHED_BYTES = 64 * MIB  # one attachment of bytes
MAX_PARENTS = 500  # parents of one version; averages and merges have several
MAX_NEEDS = 1024  # versions, such as data sets, that the recipe of one version needs
MAX_PARAMS = 1000  # a name and a value have up to MAX_NAME_BYTES each
MAX_REASON = 64 << 10  # the text that says why an operation was done
MAX_AHEAD_NS = 24 * 3600 * 10**9  # how far the times of another machine may be ahead of the clock
MAX_SIGNATURE = 16 << 10  # one signature, with its key or certificate

MAX_CODE_FILES = 500  # source files attached to a version
MAX_CODE_BYTES = 16 * MIB  # all source files of a version
MAX_ARGUMENTS = MIB  # a model's constructor arguments as JSON

MAX_SKELETON = 256 * MIB  # bytes of one file outside the data of its tensors
MAX_UNFOLDED = (16, 256 * MIB)  # bytes of all strided tensors of a file: 16 * file size + 256 MiB

# codecs
CHUNK = MIB  # bytes of a tensor that a thread encodes or decodes at a time
PIECE = 32 * MIB  # bytes of a tensor that are encoded as one payload; a multiple of CHUNK
MAX_PIPELINE_TEXT = 400
ZSTD_MAX_WINDOW = 8 * MIB

# store
RECORD = 8 * MIB  # unencoded bytes of tensors in one record of a pack; one piece may be larger
RECORD_TEXTS = 250  # distinct pipelines per record; the header of a record has room for 256
RECORD_MEMBERS = 1 << 14  # contents (such as tensors) per record
PACK_TARGET = 128 * MIB  # a larger pack gets no more records
MAX_RECORD_HEADER = 64 * MIB
MAX_ENTRY = 16 * MIB  # one journal entry's payload
INDEX_BATCH = 512  # journal entries that are in memory before they are added to the index

# remote
BUCKET_DAYS = 14  # days for which unreferenced objects stay, because clients may still read them

# adapters
MAX_SAFETENSORS_HEADER = 100_000_000
MAX_ZIP_MEMBERS = 1_000_000
MAX_PICKLE = 256 * MIB
MAX_PICKLE_DEPTH = 1000

# provenance
MAX_PROBE = 64 * MIB  # the summary of one probed execution
MAX_PROBE_TENSORS = 4096 * MIB  # the tensors of one probed execution
