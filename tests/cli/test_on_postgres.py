"""Every command on a PostgreSQL store, as it is typed; what is secret in the address is never shown."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.command import Command, agent, in_order
from tests.postgres import new_schema

SECRET = "s3cret"


@pytest.fixture
def address(postgres: str) -> str:
    """The server lets everybody in, so that any password will do."""
    return f"{postgres.replace('//postgres:@', f'//postgres:{SECRET}@')}&schema={new_schema()}&connections=4"


def test_a_session_from_its_first_run_to_its_end(perdure: Command, address: str) -> None:
    store, shown = ("--store", address), list[str]()

    def see(*words: str, code: int = 0, input: str | None = None) -> str:
        done = perdure.call(*words, *store, code=code, input=input)
        shown.append(done.stdout + done.stderr)
        return done.stdout

    see("run", "hello", *agent("greeter"), "--session", "one")
    in_order(see("run", "pay", *agent("banker"), "--session", "two", code=3, input=""), "perdure decide", "--store")
    [pending] = perdure.objects("pending", *store)
    assert pending["id"] in see("pending")
    in_order(see("decide", pending["id"], "approve"), "approve is recorded", "perdure resume two")
    see("resume", "two", *agent("banker"))
    see("sessions", "show", "two")
    see("sessions", "records", "two")
    see("sessions", "audit", "two")
    see("sessions", "fork", "two", "--id", "three")
    assert {row["id"] for row in perdure.objects("sessions", "list", *store)} == {"one", "two", "three"}
    see("sessions", "list")
    see("chat", *agent("greeter"), input="hello\n")
    see("sessions", "delete", "three", "--yes")
    assert "3 sessions checked; nothing wrong." in see("store", "check")
    assert "Nobody drives" in see("workers")
    see("store", "prune", "--older-than", "1d", "--dry-run")
    see("stop", "one", code=2)
    see("cancel", "one", code=2)
    see("doctor", code=0)
    assert SECRET not in "".join(shown)


def test_the_address_may_be_in_the_environment(perdure: Command, address: str) -> None:
    perdure.env["PERDURE_STORE"] = address
    shown = perdure("run", "pay", *agent("banker"), "--session", "two", code=3, input="")
    assert "--store" not in shown, "a command that is shown works as it is"
    assert [row["id"] for row in perdure.objects("sessions", "list")] == ["two"]


def test_the_doctor_looks_at_the_server(perdure: Command, address: str) -> None:
    shown = perdure("doctor", "--store", address)
    in_order(
        shown, "✓ PostgreSQL ", "✓ LISTEN works", "a commit takes ", " ms", "0 workers living", ":…@", "0 sessions"
    )
    assert "There are no sessions" in perdure("sessions", "list", "--store", address)
    shown = perdure("doctor", "--store", f"{address}&pooled=true")
    in_order(shown, "• LISTEN is not used", "direct=postgresql://…")
    shown = perdure("doctor", "--store", f"{address}&direct=postgresql://postgres:{SECRET}@localhost:1/x", code=1)
    in_order(shown, "✗ LISTEN does not work", "a commit takes")
    assert SECRET not in shown
    shown = perdure("doctor", "--store", address.replace("/postgres?", "/nothing?"), code=1)
    in_order(shown, "✗ the store cannot be opened", 'database "nothing" does not exist', "mend the store's address")


@pytest.mark.parametrize("engine", ["local", "dbos"])
def test_a_worker_takes_such_an_address(perdure: Command, address: str, engine: str) -> None:
    command = ("worker", "--store", f"{address}&application_name=shop", "-a", agent("greeter")[1], "--engine", engine)
    worker = perdure.start(*command, "--json")
    try:
        assert worker.stdout is not None
        said = json.loads(worker.stdout.readline())
        assert said["state"] == "ready"
        shown = perdure("doctor", "--store", address)
        assert "✓ 1 worker living, with 0 sessions in hand" in shown
        worker.send_signal(signal.SIGTERM)
        out, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors
        assert SECRET not in out + errors
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()
