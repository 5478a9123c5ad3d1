"""The whole extension surface: Store, Model, Engine and Clock, and the plain data that crosses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from perdure.core.capacity import Capacity
from perdure.core.deltas import Delta, ModelDelta
from perdure.core.events import Event
from perdure.core.messages import JSON, AnswerPart, Message, Plain, StopReason, Usage
from perdure.core.specs import ModelSettings, ToolSpec
from perdure.core.views import Status, Summary


class Record(Plain, frozen=True):
    """The envelope of an event: which session (uid), where in its log, when, and in which run."""

    session: str
    seq: int
    at: float
    run: int
    event: Event


class FromChild(msgspec.Struct, frozen=True):
    """What a sub-agent does while its parent is watched: an item of the child's own stream, with where it is from.

    `call` is the parent's call that it works for. Never in the parent's log.
    """

    session: str
    agent: str
    call: int
    item: Record | Delta | FromChild


Item: TypeAlias = Record | Delta | FromChild
"""What a stream yields."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record to be: the store gives it the next seq."""

    at: float
    run: int
    payload: bytes


class Opening(msgspec.Struct, frozen=True):
    """What a first append says of its session. `base`: the uid whose first `expect` records are this fork's past.

    `epoch`: the next driver's is above it, because a log that was imported names epochs of its own.
    """

    tenant: str
    id: str
    metadata: dict[str, str]
    base: str | None = None
    epoch: int = 0


class Batch(msgspec.Struct, frozen=True):
    """One append: all of it or nothing.

    `expect` is the head it was made for. `epoch` is the driver's; commands have none. `drops_draft`: an answer came.
    """

    session: str
    expect: int
    entries: tuple[Entry, ...]
    summary: Summary
    epoch: int | None = None
    opening: Opening | None = None
    drops_draft: bool = False


class SessionRow(msgspec.Struct, frozen=True):
    """A session as a store lists it."""

    uid: str
    tenant: str
    id: str
    agent: str
    status: Status
    head: int
    epoch: int
    owner: str | None
    metadata: dict[str, str]
    created_at: float
    updated_at: float
    summary: Summary


class SessionQuery(msgspec.Struct, frozen=True):
    """Filters, all of which must hold; `cursor` is the last page's. Newest first."""

    tenant: str | None = None
    agent: str | None = None
    status: Status | None = None
    metadata: dict[str, str] = {}
    pending: bool = False
    triggers: bool = False
    watches: bool = False
    cursor: str | None = None
    limit: int = 100


class SessionPage(msgspec.Struct, frozen=True):
    rows: tuple[SessionRow, ...]
    cursor: str | None


class Claim(msgspec.Struct, frozen=True):
    """The right to drive: every append under it carries the epoch. `heir_of`: the owner that died holding it."""

    epoch: int
    head: int
    heir_of: str | None = None


class Worker(msgspec.Struct, frozen=True):
    """A living owner: how many sessions it holds, and what it said of itself when it joined."""

    owner: str
    sessions: int
    about: dict[str, JSON] = {}


class Store(Protocol):
    """Where logs live.

    Promises: what `append` returned from is durable; seq is 1, 2, 3 … without gap; a stale epoch appends nothing; a
    session whose summary says runnable or whose wake_at has come is found by `runnable` until somebody living owns it.
    Raises: Conflict (another head, or an id taken), StaleEpoch, NotFound, StoreError.
    """

    async def open(self) -> None:
        """Connects, migrates, or refuses with one sentence."""
        ...

    async def close(self) -> None: ...

    async def append(self, batch: Batch) -> None:
        """The only way in for facts."""
        ...

    async def read(self, session: str, *, after: int = 0, limit: int | None = None) -> list[Record]: ...

    def watch(self, session: str | None, notify: Callable[[int], None]) -> Callable[[], None]:
        """Calls `notify(head)` in this loop soon after anybody appended; returns what ends it.

        Without a session: `notify(0)` for all of them.
        """
        ...

    async def find(self, tenant: str, id: str) -> SessionRow | None: ...

    async def get(self, session: str) -> SessionRow | None: ...

    async def list(self, query: SessionQuery) -> SessionPage: ...

    async def delete(self, session: str) -> None:
        """Forgets a session and what belongs to it alone; forks of it keep their past. Refused while it is driven."""
        ...

    async def join(self, owner: str, about: dict[str, JSON] | None = None) -> None:
        """Registers this process as an owner; it counts as living until it leaves or dies."""
        ...

    async def leave(self, owner: str) -> None:
        """Gives up everything it owns."""
        ...

    async def owners(self) -> Sequence[str]:
        """The owners that are living now."""
        ...

    async def workers(self) -> Sequence[Worker]:
        """The same with what they hold and who they are, by name."""
        ...

    async def claim(
        self, session: str, owner: str, *, force: bool = False, capacity: Capacity | None = None
    ) -> Claim | None:
        """Raises the epoch, if nobody living owns the session (or by force).

        And if no cap of its tenant or agent is reached by what the living own; many claims at once never exceed it.
        """
        ...

    async def release(self, session: str, *, epoch: int, head: int) -> bool:
        """Gives the session up, only if the head is still the one that was folded."""
        ...

    async def runnable(
        self,
        queues: Sequence[str] | None,
        *,
        agents: Sequence[str] | None = None,
        now: float,
        limit: int = 100,
        capacity: Capacity | None = None,
    ) -> Sequence[str]:
        """Sessions of these queues and of these agents, or of any, that have work and no living owner.

        Longest waiting first, where each level of priority counts as 30 seconds of waiting. With caps, only as many of
        a tenant or an agent as could be claimed now; and the first of each of them, then the second of each.
        """
        ...

    async def count_waiting(self, tenant: str | None, *, now: float, limit: int) -> int:
        """How many sessions, of one tenant or of all, have work and no living owner; counted up to the limit."""
        ...

    async def save_artifact(self, session: str, digest: str, data: bytes) -> None: ...

    async def load_artifact(self, session: str, digest: str) -> bytes: ...

    async def append_draft(self, session: str, chunk: bytes, *, epoch: int) -> None: ...

    async def read_draft(self, session: str) -> Sequence[bytes]: ...


class Transaction(Protocol):
    """What a transactional tool writes with: its writes are committed with the call's outcome, or not at all."""

    def execute(self, sql: str, *values: Any) -> Any:
        """The rows that a statement gives, as tuples; an async tool awaits them. Values stand as $1, $2 … in it."""
        ...


class OpenTransaction(Protocol):
    """A transaction from the tool's first write to the commit of its outcome."""

    async def run(self, body: Callable[[Transaction], Awaitable[Any]]) -> Any: ...

    async def run_in_thread(self, body: Callable[[Transaction], Any], submit: Callable[..., Awaitable[Any]]) -> Any: ...

    async def append(self, batch: Batch) -> None:
        """Commits the batch and what was written before. After a Conflict it may be tried with another batch.

        Raises what `Store.append` raises, and TransactionLost where nothing is left to commit.
        """
        ...

    async def roll_back(self) -> None:
        """Gives up what was not committed; never raises."""
        ...


@runtime_checkable
class Transacts(Protocol):
    """A store in whose transactions tools may write to tables of their own."""

    def check_tool(self, name: str, *, is_async: bool) -> None:
        """Refuses a tool that cannot be run in a transaction here, with one sentence."""
        ...

    def begin(self) -> OpenTransaction: ...


@runtime_checkable
class SharesDeltas(Protocol):
    """A store that also carries deltas between processes. What gets lost is lost, and nothing of it is ever kept."""

    def follow_deltas(self, session: str, heard: Callable[[bytes], None]) -> Callable[[], None]:
        """Calls `heard` with what drivers send, in this loop; returns what ends it."""
        ...

    def serve_deltas(self, session: str, wanted: Callable[[], None]) -> Callable[[], None]:
        """Calls `wanted` when somebody follows, and again and again while they do; returns what ends it."""
        ...

    async def send_deltas(self, session: str, piece: bytes) -> None:
        """Passes a piece on, of UTF-8 and at most 7,500 bytes; returns soon and never raises."""
        ...


HeardQuota: TypeAlias = Callable[[str, float | None], None]
"""Of a quota: shut for so many seconds; 0, somebody may try; None, open."""


@runtime_checkable
class SharesQuota(Protocol):
    """A store through which processes agree on quotas: who is told to wait tells all, and then one tries before all.

    `quota` is a digest. What cannot be asked now is a StoreError, and the process is on its own.
    """

    def follow_quotas(self, heard: HeardQuota) -> Callable[[], None]:
        """Calls `heard` in this loop with what changed."""
        ...

    async def shut_quota(self, quota: str, seconds: float) -> None: ...

    async def enter_quota(self, quota: str) -> float | None:
        """0, one may try now, and answers for it; else the seconds until it is worth asking; None, it is open."""
        ...

    async def answer_quota(self, quota: str, *, passed: bool) -> None:
        """What came of a try: it got through, or nothing was learned. Who is refused shuts the quota instead."""
        ...


LoadArtifact: TypeAlias = Callable[[str], Awaitable[bytes]]


class ModelRequest(msgspec.Struct, frozen=True):
    """One question to a model. `messages` is a view that grows with the session: read it, never copy it per turn.

    `preface` and `suffix` stand around them for this request alone. `prefix` is the beginning of the answer, to be
    continued. `cache_key` is the same for requests that share a beginning. `load` fetches the bytes of an artifact.
    """

    model: str
    instructions: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = ModelSettings()
    output: JSON = None
    prefix: tuple[AnswerPart, ...] = ()
    preface: tuple[Message, ...] = ()
    suffix: tuple[Message, ...] = ()
    cache_key: str = ""
    load: LoadArtifact | None = None


class ModelResponse(msgspec.Struct, frozen=True):
    """The end of a stream: the whole answer, without the request's prefix. Calls are numbered by the runtime.

    `notes` say what was odd and did no harm.
    """

    parts: tuple[AnswerPart, ...]
    stop: StopReason = "end"
    usage: Usage | None = None
    notes: tuple[str, ...] = ()


class ModelTraits(msgspec.Struct, frozen=True):
    """What a model may tell of itself.

    `provider`: whose signatures and extras it understands. `quota`: equal for all models that share a rate limit.
    `continues`: it goes on from the prefix of an answer. `window`: how many tokens it reads and writes at most.
    """

    provider: str = ""
    quota: str = ""
    continues: bool = False
    window: int | None = None


class Model(Protocol):
    """A language model. A stream ends with exactly one ModelResponse, or raises ModelError."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]: ...

    def cost(self, usage: Usage) -> float | None:
        """US dollars, or None where the price is unknown."""
        ...


@runtime_checkable
class Connected(Protocol):
    """A model with traits, and with connections or processes of its own.

    The Runtime prepares it, so that its first request pays for nothing but itself, and closes it; when it is asked
    after that, it opens again.
    """

    @property
    def traits(self) -> ModelTraits: ...

    def prepare(self) -> None: ...

    async def close(self) -> None: ...


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """`now` is wall time and goes into records; `monotonic` measures; all waiting goes through `call_later`."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...


class Work(Protocol):
    """What an engine is given to work with: the sessions of one process, and who else there is."""

    @property
    def owner(self) -> str:
        """The name under which this process owns sessions."""
        ...

    @property
    def queues(self) -> Sequence[str]:
        """Those that may be served here: one for every agent that is known, named like it, and those of their tools."""
        ...

    async def drive(self, session: str) -> None:
        """Drives it until it settles, waits, or somebody else has it; may be asked twice, or for nothing."""
        ...

    def priority(self, session: str) -> int:
        """What comes first where there is no room for all: the highest, as far as it is known here."""
        ...

    async def sweep(self, queues: Sequence[str] | None) -> Sequence[str]:
        """Sessions of these queues, or of all that can be driven here, that have work and no living owner."""
        ...

    def watch(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Calls `notify` soon after anybody appended to any session; returns what ends it."""
        ...

    async def living(self) -> Sequence[str]:
        """The owners that are living now."""
        ...


class Engine(Protocol):
    """Decides which process drives which session, and when.

    Promises: a session that has work is driven by somebody, at least once, until it settles, whoever dies meanwhile.
    The log promises the rest: nothing is done twice because a session was driven twice. What an engine passes on are
    ids, never history. One that also drives queues which nobody named at its start, by `work.sweep(None)`, may say so
    with `any_queue = True`: then agents may be found by a resolver.
    """

    async def start(self, work: Work) -> None: ...

    def submit(self, session: str, queue: str) -> None:
        """The fast path to a session that has work; the sweep finds what it misses."""
        ...

    def wake(self, session: str, queue: str, at: float) -> None:
        """The fast path to a session that will have work at this time, if nothing comes before."""
        ...

    def cancel(self, session: str) -> None:
        """Forgets a session that is gone: what is under way here is broken off, what waits for it is dropped."""
        ...

    async def drain(self, grace: float) -> None:
        """Takes no new work, lets what is under way finish for `grace` seconds and leaves the rest to others."""
        ...
