"""An inference engine as ``mvc follow`` sees it: an HTTP server that loads a folder when told.

It takes the requests of SGLang and vLLM that docs/guides/inference.md sends, with the fields that
their documentation names, and refuses others. A load that fails leaves a part of the new weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from safetensors.numpy import load_file

Fields = dict[str, type]


class Refused(Exception):
    """An answer with the status 400."""


class Engine:
    """``weight_version`` is loaded; no answer is given while the engine is paused."""

    def __init__(self) -> None:
        self.weights: dict[str, np.ndarray] = {}
        self.weight_version = "default"
        self.is_paused = False
        self.requests: list[str] = []
        self.hangs = False
        self.ended = Event()
        self._session: str | None = None  # of vLLM: begun, or loaded
        self._routes: dict[str, tuple[Fields, Callable[[dict[str, Any]], object]]] = {
            "/pause_generation": ({"mode": str}, self._pause),
            "/update_weights_from_disk": (
                {"model_path": str, "weight_version": str, "flush_cache": bool},
                self._from_disk,
            ),
            "/continue_generation": ({}, self._go_on),
            "/pause": ({}, self._pause),
            "/init_weight_transfer_engine": ({"init_info": dict}, lambda _: None),
            "/start_weight_update": ({}, self._start),
            "/update_weights": ({"update_info": dict}, self._update),
            "/finish_weight_update": ({"weight_version": str}, self._finish),
            "/resume": ({}, self._go_on),
            "/collective_rpc": ({"method": str, "kwargs": dict}, self._rpc),
            "/update_weight_version": (
                {"new_version": str},
                lambda given: self._loaded(given["new_version"]),
            ),
        }

    def answer(self) -> tuple[str, float]:
        """What ``/generate`` says: the version, and a number that depends on every weight."""
        assert not self.is_paused
        return self.weight_version, total(self.weights)

    def post(self, target: str, body: bytes) -> object:
        """Raises Refused."""
        parts = urlsplit(target)
        self.requests.append(parts.path)
        if self.hangs:
            self.ended.wait(60)
        fields, act = self._routes[parts.path]
        given = json.loads(body)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if query not in ({}, {"mode": "wait"}):
            raise Refused(f"{parts.path}?{parts.query}")
        wrong = [k for k in fields.keys() | given.keys() if type(given.get(k)) is not fields.get(k)]
        if wrong:
            raise Refused(f"{parts.path} does not take {wrong}")
        return act(given)

    def _pause(self, given: dict[str, Any]) -> None:
        if given.get("mode", "abort") not in ("abort", "retract", "in_place"):
            raise Refused("no such mode")
        self.is_paused = True

    def _go_on(self, _: dict[str, Any]) -> None:
        self.is_paused = False

    def _from_disk(self, given: dict[str, Any]) -> dict[str, object]:
        self._load(given["model_path"])
        self._loaded(given["weight_version"])
        return {"success": True, "message": "", "num_paused_requests": 0}

    def _start(self, _: dict[str, Any]) -> None:
        if self._session is not None or not self.is_paused:
            raise Refused("an update is active, or the engine is not paused")
        self._session = "begun"

    def _update(self, given: dict[str, Any]) -> None:
        session, self._session = self._session, None  # one that fails is cleaned up
        if session != "begun" or given["update_info"].keys() != {"path"}:
            raise Refused("no update was started, or it has other fields")
        self._load(given["update_info"]["path"])
        self._session = "loaded"

    def _finish(self, given: dict[str, Any]) -> None:
        if self._session != "loaded":
            raise Refused("no checkpoint was loaded")
        self._session = None
        self._loaded(given["weight_version"])

    def _rpc(self, given: dict[str, Any]) -> None:
        if given["method"] != "reload_weights" or given["kwargs"].keys() != {"weights_path"}:
            raise Refused("no such method")
        self._load(given["kwargs"]["weights_path"])

    def _load(self, folder: str) -> None:
        if not self.is_paused or not Path(folder).is_absolute():
            raise Refused("the engine is not paused, or the path is not absolute")
        shards = sorted(Path(folder).glob("*.safetensors"))
        if not shards:
            raise Refused(f"no safetensors in {folder}")
        for shard in shards:
            for key, value in load_file(shard).items():
                if not np.isfinite(value).all():
                    raise Refused(f"{key} is not finite")
                self.weights[key] = value

    def _loaded(self, version: str) -> None:
        self.weight_version = version


def total(weights: dict[str, np.ndarray]) -> float:
    return float(sum(value.astype(np.float64).sum() for value in weights.values()))


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """The URL at which it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                status, answer = 200, engine.post(self.path, body) or {"message": "ok"}
            except (Refused, KeyError, ValueError) as error:
                status, answer = 400, {"success": False, "message": str(error)}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        engine.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
