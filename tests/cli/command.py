"""The real `perdure` in a real process, with a data folder of its own."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from select import select
from signal import SIGKILL
from tempfile import TemporaryFile
from typing import Any

PERDURE = str(Path(sys.executable).parent / "perdure")
AGENTS = str(Path(__file__).parent / "agents.py")
MANY = str(Path(__file__).parent / "many.py")
NURSERY = str(Path(__file__).parent / "nursery.py")
TIMEOUT = 60
FOREIGN = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
    "PERDURE_STORE",
    "PERDURE_MODEL",
    "PERDURE_DEBUG",
    "PERDURE_MODELS",
    "XDG_CACHE_HOME",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "NO_COLOR",
    "FORCE_COLOR",
    "COLUMNS",
    "LINES",
)

BEFORE_MAIN = ("PYTHON", "LC_", "LANG", "LD_")
"""What an interpreter reads when it starts begins like this."""


class Command:
    """Calls `perdure` in one folder. A call that ends with another code than expected, or with a traceback, fails."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        self.env = {**kept, "XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder), "TERM": "xterm-256color"}

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PERDURE, *arguments],
            cwd=self.folder,
            env=self.env,
            text=True,
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def call(self, *arguments: str, code: int = 0, input: str | None = None) -> subprocess.CompletedProcess[str]:
        done = _nursery().call([PERDURE, *arguments], self.folder, self.env, input or "")
        said = f"perdure {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, said
        assert "Traceback" not in done.stderr, said
        return done

    def __call__(self, *arguments: str, code: int = 0, input: str | None = None) -> str:
        """What it printed."""
        return self.call(*arguments, code=code, input=input).stdout

    def objects(self, *arguments: str, code: int = 0, input: str | None = None) -> list[Any]:
        """What it printed with --json: one object a line, and nothing else."""
        return [json.loads(line) for line in self(*arguments, "--json", code=code, input=input).splitlines()]

    def many(self, commands: list[list[str]]) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of each."""
        done = subprocess.run(
            [sys.executable, MANY], cwd=self.folder, env=self.env, input=json.dumps(commands), text=True,
            stdout=subprocess.PIPE, timeout=TIMEOUT, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    def ledger(self) -> list[str]:
        path = self.folder / "ledger.txt"
        return path.read_text().splitlines() if path.exists() else []


class Nursery:
    """Has commands forked by processes that have loaded what lies beneath Perdure; see nursery.py."""

    def __init__(self) -> None:
        self._of: dict[frozenset[tuple[str, str]], tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def call(
        self, command: list[str], folder: Path, env: dict[str, str], input: str
    ) -> subprocess.CompletedProcess[str]:
        order = {"command": command, "folder": str(folder), "env": env}
        with TemporaryFile() as source, TemporaryFile() as out, TemporaryFile() as errors:
            source.write(input.encode())
            source.seek(0)
            reads, writes = os.pipe()
            try:
                streams = [source.fileno(), out.fileno(), errors.fileno(), writes]
                socket.send_fds(self._line(env), [json.dumps(order).encode()], streams)
            finally:
                os.close(writes)
            with open(reads, "rb", buffering=0) as told:
                pid = int(told.readline())
                if not select([told], [], [], TIMEOUT)[0]:
                    os.kill(pid, SIGKILL)
                    raise subprocess.TimeoutExpired(command, TIMEOUT)
                code = int(told.readline())
            said = [_text_in(file) for file in (out, errors)]
        return subprocess.CompletedProcess(command, code, *said)

    def _line(self, env: dict[str, str]) -> socket.socket:
        """To the process whose interpreter was started as this environment wants it."""
        fixed = {name: value for name, value in env.items() if name.startswith(BEFORE_MAIN)}
        key = frozenset(fixed.items())
        if key not in self._of:
            here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            process = subprocess.Popen([sys.executable, NURSERY], stdin=there, stdout=subprocess.DEVNULL, env=fixed)
            there.close()
            self._of[key] = process, here
        return self._of[key][1]

    def close(self) -> None:
        for process, line in self._of.values():
            line.close()
            process.kill()
            process.wait()


def _text_in(file: Any) -> str:
    """As a pipe is read in text mode."""
    file.seek(0)
    return file.read().decode().replace("\r\n", "\n")


@cache
def _nursery() -> Nursery:
    made = Nursery()
    atexit.register(made.close)
    return made


def agent(name: str) -> tuple[str, str]:
    return ("--agent", f"{AGENTS}:{name}")


def in_order(shown: str, *parts: str) -> None:
    """Every part is there, each behind the one before it."""
    at = 0
    for part in parts:
        found = shown.find(part, at)
        assert found >= 0, f"{part!r} is not there, or not behind what has to come before it:\n{shown}"
        at = found + len(part)
