"""What a fleet costs: docs/performance.md, "A fleet".

    python -m tests.benchmarks.bench_fleet [--parts swap wait] [--followers 200]
        [--waiting 1000] [--root DIR]

swap: so many followers, in a few processes, each with a file of its own, follow one server through
a proxy that counts; a version goes live, and they are waited for. wait: so many plain requests wait
for news of a target; another version goes live, and all of them ask for it. Nothing here asserts a
time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread

import numpy as np

import mvc
from mvc.remote import wire
from mvc.remote.transport import Wanted
from tests.benchmarks.measuring import folder, head, row
from tests.fleet.following import follow
from tests.remote.kit.proxy import Proxy
from tests.remote.kit.serving import Serving, serving, token, transport
from tests.waiting import until

PROJECT = Path(__file__).parents[2]
PROCESSES = 4
SCOPES = 100
"""Of one token."""
PATH = "model.safetensors"
MIB = 1 << 20
KIB = 1 << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="*", default=["swap", "wait"])
    parser.add_argument("--followers", type=int, default=200)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--root", type=Path)
    options = parser.parse_args()
    with folder(options.root) as root:
        if "swap" in options.parts:
            _swap(root / "swap", options.followers)
        if "wait" in options.parts:
            _wait(root / "wait", options.waiting)


class World:
    """A served repository; its model has as many parameters as the conv net of the other parts."""

    def __init__(self, root: Path) -> None:
        shutil.rmtree(root, ignore_errors=True)
        self.served = root / "served"
        self.served.mkdir(parents=True)
        self.repo = mvc.Repository.init(self.served / "net", bare=True)
        self.token = token(self.served, "read")
        self._random = np.random.default_rng(0)
        shapes = {
            "conv1": (32, 3, 5, 5),
            "conv2": (64, 32, 5, 5),
            "fc1": (128, 6400),
            "fc2": (10, 128),
        }
        self._state = {
            k: self._random.standard_normal(v).astype(np.float32) for k, v in shapes.items()
        }

    def deploy(self) -> tuple[str, int]:
        """Another version: the hash of its file, and the bytes of its records."""
        for array in self._state.values():
            array += (1e-4 * self._random.standard_normal(array.shape)).astype(np.float32)
        made = self.repo.commit(self._state, path=PATH, deploy="prod")
        place = self.served.parent / PATH
        self.repo.checkout(made.id, path=PATH, to=place, force=True)
        return hashlib.sha256(place.read_bytes()).hexdigest(), made.stored_bytes


def _processor(server: Serving) -> float:
    """Seconds of processors that the server has taken."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- a version at many followers -----------------------------------------------------------


def follow_many(url: str, place: Path, first: int, count: int) -> None:
    """So many followers in this process, until standard input ends."""
    stop = Event()

    def work(number: int) -> None:
        follow(url, "prod", to=place / str(number) / PATH, name=str(number), stop=stop)

    threads = [Thread(target=work, args=(first + i,)) for i in range(count)]
    for thread in threads:
        (place / str(first + threads.index(thread))).mkdir(parents=True)
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()


@contextmanager
def _followers(url: str, place: Path, count: int, served: Path) -> Iterator[list[Path]]:
    code = "import sys; from tests.benchmarks.bench_fleet import *; u, p, f, c = sys.argv[1:]; "
    code += "follow_many(u, Path(p), int(f), int(c))"
    each = min(-(-count // PROCESSES), SCOPES - 1)
    with ExitStack() as stack:
        running = []
        for first in range(0, count, each):
            words = [url, str(place), str(first), str(min(each, count - first))]
            nodes = (f"deploy:nodes/{first + i}/*" for i in range(each))
            text = token(served, "read", *nodes, name=f"nodes-{first}")
            environment = os.environ | {"MVC_TOKEN_ORIGIN": text, "PYTHONPATH": str(PROJECT)}
            line = [sys.executable, "-c", code, *words]
            running.append(subprocess.Popen(line, stdin=subprocess.PIPE, env=environment))
            stack.callback(running[-1].kill)
        yield [place / str(i) / PATH for i in range(count)]
        for each_ in running:
            each_.communicate(timeout=120)


def _all_are(files: list[Path], expected: str) -> bool:
    """Looks at those that were another version the last time; takes them off the list."""
    while files:
        if not files[-1].exists():
            return False
        if hashlib.sha256(files[-1].read_bytes()).hexdigest() != expected:
            return False
        files.pop()
    return True


def _swap(root: Path, count: int) -> None:
    world = World(root)
    with serving(world.served) as server, Proxy(("127.0.0.1", server.port)) as proxy:
        first, _ = world.deploy()
        url = f"http://127.0.0.1:{proxy.port}/net"
        with _followers(url, root / "nodes", count, world.served) as files:
            until(lambda: _all_are(list(files), first), 600)
            time.sleep(5)  # reports of the first version
            proxy.again()
            before, begun, lines = _processor(server), time.monotonic(), len(server.log)
            expected, records = world.deploy()
            left = list(files)
            until(lambda: _all_are(left, expected), 600)
            took = time.monotonic() - begun
            down, up = proxy.down, proxy.up
            time.sleep(5)  # reports of this one
            used = _processor(server) - before
            outcomes = Counter(re.findall(r" send 200 (\S+) ", server.log[lines:]))
            peak = server.memory / MIB
            reports = [
                each for each in mvc.nodes(world.repo) if each.commit == world.repo.find("HEAD")
            ]
    limit = int(1.02 * records + 32 * KIB)
    head(f"a version of {records:,} bytes at {count} followers", "", "for 1,000, extrapolated")
    more = 1000 / count
    row("seconds until all serve it", f"{took:.1f}", f"{took * more:.0f}")
    row("bytes down, each", f"{down // count:,} (limit {limit:,})", "")
    row("bytes up, each", f"{up // count:,}", "")
    row("seconds of the server's processor", f"{used:.1f}", f"{used * more:.0f}")
    row("memory of the server at its peak", f"{peak:.0f} MiB", "")
    row("answers", ", ".join(f"{n} {k}" for k, n in sorted(outcomes.items())), "")
    row("nodes that have reported", str(len(reports)), "")


# -- many that wait ------------------------------------------------------------------------


def _wait(root: Path, count: int) -> None:
    world = World(root)
    world.deploy()
    have = world.repo.find("HEAD")
    with serving(world.served) as server, ExitStack() as stack:
        opened = stack.enter_context(closing(transport(f"{server.url}/net", world.token)))
        path = f"/net/v1/live?target=prod&mark={opened.live('prod')}&wait=60"
        headers = {"Authorization": f"Bearer {world.token}"}
        connections = [HTTPConnection("127.0.0.1", server.port) for _ in range(count)]
        for connection in connections:
            stack.callback(connection.close)
            connection.request("GET", path, headers=headers)
        time.sleep(2)
        idle, before = _memory(server), _processor(server)
        begun = time.monotonic()
        world.deploy()
        statuses = Counter(_answered(connection) for connection in connections)
        woken, waking = time.monotonic() - begun, _processor(server) - before
        asked = wire.encode(Wanted(live="prod", have=frozenset({have})))
        for connection in connections:  # all at once, and each is read when its turn comes
            connection.request("POST", "/net/v1/send?skip=0", asked, headers)
        statuses.update(_answered(connection) for connection in connections)
        head(f"{count:,} that wait", "")
        row("memory of the server: all wait", f"{idle:.0f} MiB")
        row("peak, while all ask for a version at once", f"{server.memory / MIB:.0f} MiB")
        row("seconds until all know that something else is live", f"{woken:.1f}")
        row("seconds of the server's processor for that", f"{waking:.1f}")
        row("status of the answers", str(dict(statuses)))


def _answered(connection: HTTPConnection) -> int:
    answer = connection.getresponse()
    answer.read()
    return answer.status


def _memory(server: Serving) -> float:
    """MiB that the server has now."""
    fields = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


if __name__ == "__main__":
    main()
