"""The real `perdure` in a real process, with a data folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PERDURE = str(Path(sys.executable).parent / "perdure")
AGENTS = str(Path(__file__).parent / "agents.py")
MANY = str(Path(__file__).parent / "many.py")
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
        source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        done = subprocess.run(
            [PERDURE, *arguments],
            cwd=self.folder,
            env=self.env,
            text=True,
            capture_output=True,
            timeout=TIMEOUT,
            **source,
        )
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


def agent(name: str) -> tuple[str, str]:
    return ("--agent", f"{AGENTS}:{name}")


def in_order(shown: str, *parts: str) -> None:
    """Every part is there, each behind the one before it."""
    at = 0
    for part in parts:
        found = shown.find(part, at)
        assert found >= 0, f"{part!r} is not there, or not behind what has to come before it:\n{shown}"
        at = found + len(part)
