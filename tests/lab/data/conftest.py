"""A local web server that can misbehave, a tiny release, and real releases if available."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tiny_releases import FASHION, as_file

from hullo.lab.data import fashion_mnist, find


@pytest.fixture
def real():
    """Return a real release's copy in the directory that HULLO_DATA names."""

    def copy(name):
        if not os.environ.get("HULLO_DATA") or (result := find(name)).flaws():
            pytest.skip(f"needs {name} in HULLO_DATA")
        return result

    return copy


@pytest.fixture
def tiny():
    """Return a Fashion-MNIST release with four training images and one test image of 2 x 3 pixels."""
    return replace(fashion_mnist.RELEASE, files=tuple(as_file(*item) for item in FASHION.items()))


@dataclass
class Site:
    """The files of the server, its faults, and the requests it got."""

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)  # after how many bytes each connection in turn breaks
    tells_length: bool = True
    asked: list[str] = field(default_factory=list)
    gate: threading.Event | None = None  # what a cut connection waits for, instead of breaking
    address: str = ""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        site = self.server.site
        name = self.path.removeprefix("/")
        site.asked.append(name)
        if name not in site.files:
            self.send_error(404)
            return
        body = site.files[name]
        self.send_response(200)
        if site.tells_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if site.cuts:
            body = body[: site.cuts.pop(0)]
            self.wfile.write(body)
            if site.gate is not None:
                site.gate.wait(60)
        else:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.site = Site(address=f"http://127.0.0.1:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.site
    server.shutdown()
    thread.join()
    server.server_close()
