"""The checks of the trials find what they are there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Runtime
from perdure.stores.memory import MemoryStore
from tests.crash.ledger import write_line
from tests.engines.clerks import APPENDS, DEEDS, Append, Deed, clerk
from tests.engines.evidence import broken


async def test_what_was_done_twice_or_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setattr("tests.engines.clerks.FOLDER", tmp_path / "own")
    async with Runtime(MemoryStore(), agents=[clerk]) as runtime:
        session = await runtime.open(clerk, id="s")
        await session.run("work 2", key="first")
        logs = {session.uid: await session.records()}
    acked = {session.uid: ["first"]}
    for deed in (
        Deed("start", "mail", "s", 2, 1, "1.0", "k2", 7),
        Deed("effect", "charge", "s", 1, 1, "1.0", "k1", 7),
    ):
        write_line(tmp_path / DEEDS, deed)
    for expect, epoch in ((3, 1), (6, 1), (9, 2)):
        write_line(tmp_path / APPENDS, Append(session.uid, expect, 3, epoch, 7))
    assert list(broken(tmp_path, logs, acked, 2)) == []
    write_line(tmp_path / DEEDS, Deed("start", "mail", "s", 2, 1, "1.0", "k2", 8))
    write_line(tmp_path / DEEDS, Deed("effect", "charge", "s", 1, 2, "1.0", "other", 8))
    write_line(tmp_path / APPENDS, Append(session.uid, 12, 3, 1, 7))
    found = list(broken(tmp_path, logs, {session.uid: ["first", "second"]}, 5))
    for what in (
        "3 turns instead of 5",
        "the acknowledged input second is lost",
        "mail 2, attempt 1, started 2 times on 1 intents",
        "the mail 1.0 started 2 times",
        "1.0 was charged under 2 keys",
        "an append under the stale epoch 1 at 12",
    ):
        assert [line for line in found if what in line], (what, found)
