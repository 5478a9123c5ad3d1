"""A terminal for a real process: a pseudo terminal, with what it shows rendered as a person would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.cli.command import PERDURE, TIMEOUT, Command

# A shell would give its child the terminal; without it Ctrl-C is a character and no signal.
TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """`perdure` in a terminal of so many columns; rows are many, so that nothing scrolls away."""

    def __init__(self, perdure: Command, *arguments: str, columns: int = 80, rows: int = 100) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen = pyte.Screen(columns, rows)
        # Programs ask where the cursor is; a terminal answers.
        self._screen.write_process_input = lambda data: os.write(self._master, data.encode())
        self._stream = pyte.ByteStream(self._screen)
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", TAKE_TERMINAL, PERDURE, *arguments],
            cwd=perdure.folder,
            env=perdure.env,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.raw = b""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, *parts: str) -> str:
        """What is shown as soon as all of it is there."""
        return self.wait_for(lambda shown: all(part in shown for part in parts), " and ".join(map(repr, parts)))

    def wait_for(self, holds: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + TIMEOUT
        while not holds(self.text()):
            assert self._read(0.2), f"it ended with {self.process.wait()} before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.text()}"
        return self.text()

    def end(self) -> int:
        """Waits for the end; the exit code."""
        deadline = time.monotonic() + TIMEOUT
        while self._read(0.2):
            assert time.monotonic() < deadline, f"it does not end:\n{self.text()}"
        os.close(self._master)
        return self.process.wait(TIMEOUT)

    def text(self) -> str:
        rows = [row.rstrip() for row in self._screen.display]
        return "\n".join(rows).rstrip() + "\n"

    def save(self, path: Path) -> None:
        path.write_text(self.text())

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read(self, patience: float) -> bool:
        """Feeds what has come to the screen; False once the other side is closed."""
        ready, _, _ = select.select([self._master], [], [], patience)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


Open = Callable[..., Terminal]
