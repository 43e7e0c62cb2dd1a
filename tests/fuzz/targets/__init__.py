"""One module a target: ``run(data)`` takes any bytes, ``seeds()`` gives sound ones.

``run`` may raise MvcError and nothing else.
"""

NAMES = (
    "record_header", "journal", "entry", "manifest", "commit", "config", "times", "revisions",
    "payload", "patch", "group", "safetensors", "torch_zip", "npz", "pickle", "index", "structure",
    "gguf", "onnx",
)  # fmt: skip
