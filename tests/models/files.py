"""A loopback web server of files that can be cut short, stall, refuse ranges or send something else."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """`files` by path. `cut` answers send `cut` bytes and close; with `stalls` they wait there until the end."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.cut: int | None = None
        self.stalls = False
        self.asked: list[str | None] = []
        """The Range of every request, in order."""
        self.reached = threading.Event()
        """A cut answer has got to its cut."""
        self.url = ""
        self.over = threading.Event()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(request.headers.get("Range"))
        data = self.files.get(request.path)
        if data is None:
            request.send_error(404)
            return
        asked = request.headers.get("Range")
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if begin >= len(data) > 0:
            request.send_error(416)
            return
        request.send_response(206 if begin else 200)
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Type", "text/html" if request.path.endswith("/") else "application/octet-stream")
        request.send_header("Content-Length", str(len(data) - begin))
        request.end_headers()
        request.wfile.write(data[begin:] if self.cut is None else data[begin : begin + self.cut])
        request.wfile.flush()
        if self.cut is not None:
            self.reached.set()
            if self.stalls:
                self.over.wait()


@contextmanager
def serving() -> Generator[FileServer]:
    state = FileServer()

    class Request(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):
                state.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
