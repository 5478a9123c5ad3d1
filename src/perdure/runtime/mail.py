"""What a session may ask of the post, as it is seen from a driver."""

from __future__ import annotations

from typing import Protocol

import msgspec

from perdure.core.commands import EndChild, SendInput, StopRun
from perdure.core.events import Origin, Reply, Spent
from perdure.core.specs import Limits
from perdure.core.state import SessionState
from perdure.runtime.policy import Policy


class Birth(msgspec.Struct, frozen=True):
    """A child that is to be, if it is not there yet; `label` is how people know it among its parent's."""

    uid: str
    agent: str
    origin: Origin
    label: str


class Above(msgspec.Struct, frozen=True, eq=False):
    """An agent above a child, whose policy holds for the child as well."""

    agent: str
    policy: Policy


class Mail(Protocol):
    """Brings to other sessions what one has for them; see Post."""

    async def start(self, parent: SessionState, birth: Birth, command: SendInput) -> None: ...

    async def stop(self, child: str, command: StopRun) -> bool: ...

    async def end(self, parent: str, command: EndChild) -> None: ...

    async def send(self, session: str, command: SendInput, source: str) -> None: ...

    async def find(self, id: str, tenant: str) -> str: ...

    async def spent_by(self, child: str, reply: Reply) -> Spent: ...

    def limits_of(self, agent: str) -> Limits: ...

    def policies_above(self, state: SessionState) -> tuple[Above, ...] | None: ...
