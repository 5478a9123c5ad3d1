"""Many commands, each in a process of its own, forked from one that has loaded the code: a fifth of the time.

Reads a JSON list of argument lists, writes a JSON list of [exit code, stdout, stderr].
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback

import pydantic

from perdure.cli import driving, listing, remote  # noqa: F401 - loaded once, for all
from perdure.cli.main import main
from perdure.stores import sqlite  # noqa: F401

# What typer loads with the first argument that it reads.
pydantic.TypeAdapter(str)


def run(arguments: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os._exit(_call(arguments))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        errors.seek(0)
        return code, out.read().decode(), errors.read().decode()


def _call(arguments: list[str]) -> int:
    sys.argv = ["perdure", *arguments]
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        return end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    return 70


if __name__ == "__main__":
    todo = json.load(sys.stdin)
    json.dump([run(arguments) for arguments in todo], sys.stdout)
