"""perdure store: copy, check, prune, as they are typed."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

from tests.cli.command import Command, agent, in_order
from tests.postgres import new_schema


@pytest.fixture
def filled(perdure: Command) -> Command:
    """Three sessions in a.db; one of them waits for a decision."""
    for name in ("one", "two"):
        perdure("run", "hello", *agent("greeter"), "--session", name, "--store", "sqlite:a.db")
    perdure("run", "pay", *agent("banker"), "--session", "asks", "--store", "sqlite:a.db", code=3, input="")
    return perdure


def test_a_copy_is_told_and_found_when_it_is_made_again(filled: Command) -> None:
    shown = filled("store", "copy", "sqlite:a.db", "sqlite:b.db")
    assert shown == "3 sessions copied and compared; 0 there already; 0 not copied.\n"
    again = filled.objects("store", "copy", "sqlite:a.db", "sqlite:b.db")
    assert again == [{"copied": 0, "there_already": 3, "not_copied": 0}]
    before = filled("sessions", "records", "one", "--store", "sqlite:a.db", "--json")
    assert filled("sessions", "records", "one", "--store", "sqlite:b.db", "--json") == before
    assert "3 sessions checked; nothing wrong." in filled("store", "check", "--store", "sqlite:b.db")


def test_a_copy_into_postgresql_and_back(filled: Command, postgres: str) -> None:
    from asyncio import run

    from perdure.stores.postgres_link import load_driver

    database = new_schema()

    async def make() -> None:
        connection = await load_driver().connect(postgres)
        await connection.execute(f"CREATE DATABASE {database}")
        await connection.close()

    run(make())
    url = postgres.replace("/postgres?", f"/{database}?")
    filled("store", "copy", "sqlite:a.db", url)
    filled("store", "copy", url, "sqlite:b.db")
    assert filled.objects("store", "check", "--store", url) == [{"sessions": 3, "wrong": 0}]
    for store in (url, "sqlite:b.db"):
        rows = filled.objects("sessions", "list", "--store", store)
        assert [(row["id"], row["status"]) for row in rows] == [("asks", "waiting"), ("two", "idle"), ("one", "idle")]


def test_damage_is_told_with_exit_code_1(filled: Command) -> None:
    database = apsw.Connection(str(filled.folder / "a.db"))
    database.execute("DELETE FROM records WHERE seq = 3 AND no = 1")
    database.close()
    shown = filled("store", "check", "--store", "sqlite:a.db", code=1)
    in_order(shown, "✗ one: Record 3 of session", "3 sessions checked; 1 wrong.")
    shown = filled("store", "copy", "sqlite:a.db", "sqlite:b.db", code=1)
    in_order(shown, "✗ one: Record 3 of session", "2 sessions copied and compared; 0 there already; 1 not copied.")


def age(command: Command, days: int) -> None:
    database = apsw.Connection(str(command.folder / "a.db"))
    database.execute("UPDATE sessions SET updated_at = ?", (int((time.time() - days * 86_400) * 1_000_000),))
    database.close()


def test_pruning_exports_first_and_can_be_taken_back(filled: Command) -> None:
    prune = ("store", "prune", "--older-than", "30d", "--store", "sqlite:a.db")
    assert filled(*prune, "--dry-run") == "0 sessions would be pruned.\n"
    age(filled, 31)
    shown = filled(*prune, "--dry-run")
    in_order(shown, "one", "two", "2 sessions would be pruned.")
    records = filled("sessions", "records", "one", "--store", "sqlite:a.db", "--json")
    assert filled(*prune, "--export", "old") == "2 sessions pruned.\n"
    assert [row["id"] for row in filled.objects("sessions", "list", "--store", "sqlite:a.db")] == ["asks"]
    files = sorted((filled.folder / "old").iterdir())
    assert len(files) == 2
    for file in files:
        filled("sessions", "import", str(file), "--store", "sqlite:a.db")
    assert filled("sessions", "records", "one", "--store", "sqlite:a.db", "--json") == records
    age(filled, 31)
    assert filled(*prune, "--status", "waiting", "--no-export") == "1 session pruned.\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--older-than", "soon", "--no-export"), "--older-than 'soon' is no age; write 30d, 12h or 45m."),
        (("--older-than", "1d"), "Say where the sessions go before they are deleted: --export FOLDER, or --no-export."),
        (("--older-than", "1d", "--no-export", "--status", "running"), "only what is idle or waiting can be pruned."),
    ],
)
def test_wrong_use_is_one_sentence(filled: Command, words: tuple[str, ...], said: str) -> None:
    done = filled.call("store", "prune", "--store", "sqlite:a.db", *words, code=2)
    assert said in done.stderr


def test_a_store_is_not_copied_into_itself(filled: Command) -> None:
    done = filled.call("store", "copy", "sqlite:a.db", "sqlite:a.db", code=2)
    assert "FROM and TO are the same store" in done.stderr
    done = filled.call("store", "copy", "sqlite:nothing.db", "sqlite:b.db", code=2)
    assert "There is no store at nothing.db" in done.stderr
    assert not (Path(filled.folder) / "b.db").exists()
