"""The unit files of deploy/: systemd understands them, and what they start drains as they say."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.cli.command import PERDURE, Command

DEPLOY = Path(__file__).parents[1] / "deploy"
INSTALLED = "/srv/perdure/venv/bin/perdure"
AGENT = """
from perdure import Agent
from perdure.testing import ScriptedModel

clerk = Agent(name="clerk", model=ScriptedModel(lambda request: "Done."))
"""


def read_unit(name: str) -> ConfigParser:
    unit = ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / name).read_text())
    return unit


def variables() -> dict[str, str]:
    lines = (DEPLOY / "worker.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def words_of(unit: ConfigParser, values: dict[str, str]) -> list[str]:
    """The command line of ExecStart as systemd splits it: a variable without braces becomes several words."""
    words: list[str] = []
    for word in shlex.split(unit["Service"]["ExecStart"]):
        words += values[word[1:]].split() if word.startswith("$") else [word]
    assert words[0] == INSTALLED
    return [PERDURE, *words[1:]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not there")
def test_systemd_has_nothing_to_say_about_them(tmp_path: Path) -> None:
    names: list[str] = []
    for path in (path for path in DEPLOY.iterdir() if path.suffix != ".env"):
        name = path.name.replace("@.", "@1.")
        (tmp_path / name).write_text(path.read_text().replace(INSTALLED, PERDURE))
        names.append(str(tmp_path / name))
    done = subprocess.run(["systemd-analyze", "verify", *names], capture_output=True, text=True, timeout=60)
    if "Failed to initialize manager" in done.stderr:
        pytest.skip(done.stderr)
    own = [line for line in done.stderr.splitlines() if "perdure" in line]
    assert (done.returncode, own) == (0, [])


def test_a_worker_has_time_to_drain_and_comes_back() -> None:
    service = read_unit("perdure-worker@.service")["Service"]
    grace = re.search(r"--grace (\d+)", service["ExecStart"])
    assert grace
    assert int(service["TimeoutStopSec"]) > int(grace[1]) + 15, "some time for the store, too"
    assert (service["KillSignal"], service["KillMode"]) == ("SIGTERM", "mixed")
    assert service["Restart"] == "always"
    assert service["EnvironmentFile"] == "/etc/perdure/worker.env"


def test_what_the_units_start_is_understood(tmp_path: Path) -> None:
    """The worker's line as it is, with the options of worker.env; the store alone is another one."""
    (tmp_path / "agents.py").write_text(AGENT)
    values = variables()
    perdure = Command(tmp_path)
    perdure.env["PERDURE_STORE"] = "sqlite:w.db"
    command = words_of(read_unit("perdure-worker@.service"), values)
    worker = subprocess.Popen(
        command, cwd=tmp_path, env=perdure.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        said = json.loads(worker.stdout.readline())
        assert (said["state"], said["agents"], said["concurrency"]) == ("ready", ["clerk"], 50)
        worker.send_signal(signal.SIGTERM)
        out, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
        assert [json.loads(line)["state"] for line in out.splitlines()][-2:] == ["draining", "ended"]
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()
    prune = words_of(read_unit("perdure-prune.service"), values)
    prune[prune.index("/var/lib/perdure/pruned")] = str(tmp_path / "pruned")
    assert perdure(*prune[1:]) == "0 sessions pruned.\n"


def test_the_example_of_an_address_is_one() -> None:
    from perdure.stores.postgres import PostgresStore
    from perdure.wiring import resolve_store

    store = resolve_store(variables()["PERDURE_STORE"])
    assert isinstance(store, PostgresStore)
    assert store.url.endswith("/agents?sslmode=verify-full")
