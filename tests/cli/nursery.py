"""A process that forks `perdure`s: each is a process of its own that loads Perdure anew, but not what lies beneath it.

Run with a socket as its standard input. Loading what Perdure stands on takes almost half of a short command's time, and
is the same for all of them. A life's streams and a pipe come over the socket; its pid and its exit code go to the pipe.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys

LOADED = (
    "aiohttp",
    "apsw",
    "asyncio",
    "asyncpg",
    "docstring_parser",
    "importlib.metadata",
    "msgspec",
    "prompt_toolkit",
    "pydantic",
    "rich.console",
    "rich.live",
    "rich.markdown",
    "rich.progress",
    "rich.table",
    "sqlite3",
    "typer",
)
STREAMS = 4


def take(words: socket.socket) -> None:
    """Returns in every process that is to be a `perdure`, and never in this one."""
    while True:
        data, ancillary, _, _ = words.recvmsg(1 << 20, socket.CMSG_SPACE(STREAMS * array.array("i").itemsize))
        if not data:
            os._exit(0)
        fds = array.array("i", b"".join(part for _, _, part in ancillary))
        if os.fork() == 0:
            words.close()
            _bear(json.loads(data), fds)
            return
        for fd in fds:
            os.close(fd)


def _bear(order: dict[str, object], fds: array.array[int]) -> None:
    """Forks once more: one becomes the command, the other waits for it and tells what came of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, told = fds
    pid = os.fork()
    if pid:
        os.write(told, f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(told, f"{code}\n".encode())
        os._exit(0)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    os.chdir(str(order["folder"]))
    os.environ.clear()
    os.environ.update(order["env"])  # type: ignore[call-overload]
    sys.argv = order["command"]  # type: ignore[assignment]


if __name__ == "__main__":
    # As if the console script had been started: beside it there is nothing to import.
    sys.path[0] = os.path.dirname(sys.executable)
    for name in LOADED:
        importlib.import_module(name)
    # What typer loads with the first argument that it reads.
    sys.modules["pydantic"].TypeAdapter(str)
    assert not any(name.partition(".")[0] == "perdure" for name in sys.modules)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    take(socket.socket(fileno=os.dup(0)))
    runpy.run_path(sys.argv[0], run_name="__main__")
