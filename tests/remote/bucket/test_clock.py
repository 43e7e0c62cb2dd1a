"""Stores that refuse a request, and a machine without credentials: each error names its remedy."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mvc.errors import RemoteRefused

pytest.importorskip("obstore")


@pytest.mark.parametrize(
    ("code", "hint"), [("RequestTimeTooSkewed", "clock"), ("AccessDenied", "keys")]
)
def test_a_refusal_names_its_own_remedy(
    monkeypatch: pytest.MonkeyPatch, code: str, hint: str
) -> None:
    from mvc.remote.transports.bucket.cloud import CloudObjects

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        objects = CloudObjects("s3://models/team", endpoint=url, region="eu-central-1")
        with pytest.raises(RemoteRefused) as caught:
            objects.read("head", 1000)
        assert hint in str(caught.value.hint)
    finally:
        server.shutdown()
        server.server_close()


def test_a_machine_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    from mvc.remote.transports.bucket.cloud import CloudObjects

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RemoteRefused, match="s3://models/team: no AWS credentials found"):
        CloudObjects("s3://models/team", region="eu-central-1").read("head", 1000)
