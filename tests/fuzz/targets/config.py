"""config.yaml."""

from pathlib import Path

from mvc.io.files import FileSystem
from mvc.repo.config import load_config
from mvc.store.writing.layout import Layout


class _Given(FileSystem):
    def __init__(self, data: bytes) -> None:
        self.data = data

    def stat(self, path: Path, *, follow: bool = True):  # type: ignore[no-untyped-def]
        return super().stat(Path("/"))

    def read_bytes(self, path: Path, limit: int) -> bytes:
        return self.data[:limit]


def run(data: bytes) -> None:
    config = load_config(_Given(data), Path("config.yaml"), None, {}, {})
    interval = config.get("store.reset_interval")
    layout = Layout.parse(str(config.get("store.layout")), interval)
    assert 1 <= layout.interval <= 10_000
    assert interval is None or interval >= 1


def seeds() -> list[bytes]:
    return [
        b"", b"store:\n  reset_interval: 5\n  max_recovery: null\n", b"user: {name: 'x'}\n",
        b"python:\n  keep_base: none\n", b"a: &a [1]\nb: *a\n", b"x: !!python/name:os.system\n",
    ]  # fmt: skip
