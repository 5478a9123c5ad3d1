"""Gates: what the sessions of one Runtime share about a model, its quota and its circuit.

Rule 1: a gate that is shut lets one probe through when its time has come; each that succeeds lets two more in, and when
nobody is left in line the gate is open. Rule 2: who came first goes first. Rule 3: a shut gate is only ever shut for
longer; only those who were let in after it was shut have a say about it. Rule 4: where others share a quota, in
this process or through the store, rule 1 holds for all of them together, until as many probes got through as there
are of them; then each goes on by itself, from one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from perdure.core.codec import digest_of
from perdure.core.errors import ModelError, ModelErrorKind
from perdure.ports import Clock, Model, ModelTraits, SharesQuota, Timer
from perdure.runtime.quotas import Others

TRIPS_AFTER = 5
TRIPPED_FOR = 30.0
TRIPPING_KINDS: frozenset[ModelErrorKind] = frozenset(
    ("overloaded", "server", "connect", "first_byte", "idle", "cut", "in_band")
)


class Gate:
    """Open, or shut until a time. Whoever `enter` lets in as a probe answers with succeed, shut or step_back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shut_until: float | None = None
        self._probes = 0
        self._line: deque[asyncio.Future[bool]] = deque()
        self._timer: Timer | None = None
        self._others: Others | None = None
        self._is_alone = True

    def join(self, others: Others | None) -> None:
        """From now on these processes have a say; None, nobody has."""
        self._others = others
        if others is None:
            self.go_alone()

    @property
    def opens_in(self) -> float:
        """Seconds until the next one may try; 0 if it is open."""
        return 0.0 if self._shut_until is None else max(0.0, self._shut_until - self._clock.monotonic())

    @property
    def is_open(self) -> bool:
        return self._shut_until is None

    @property
    def is_probed(self) -> bool:
        """Somebody is trying now; others wait for what comes of it."""
        return self._probes > 0

    async def enter(self) -> bool:
        """Waits in line while the gate is shut; True for whoever is let in as a probe."""
        if self._shut_until is None:
            return False
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._admit()
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.result():
                self.step_back()
            raise

    def succeed(self) -> None:
        """A probe got through: two more may try, so that a crowd comes back as fast as it is taken in."""
        self._probes -= 1
        if self._shut_until is None or self.opens_in:
            return
        if self._others is None or self._is_alone:
            self.grow()
        else:
            self._others.tell_passed()

    def grow(self) -> None:
        for _ in range(2):
            self.let_in()
        if not self._line:
            self._open()

    def shut(self, seconds: float, *, by_probe: bool) -> None:
        self._probes -= by_probe
        self._shut_for(seconds)
        if self._others is not None:
            self._others.tell_shut(seconds)

    def shut_by_others(self, seconds: float) -> None:
        self._shut_for(seconds)

    def step_back(self) -> None:
        """A probe learned nothing about the gate: the next in line may try."""
        self._probes -= 1
        if self._shut_until is None:
            return
        if self._others is not None and not self._is_alone:
            self._others.tell_nothing()
        self._admit()

    def go_alone(self) -> None:
        """Nobody else has a say any more, until it is shut again: one tries, and the others follow."""
        if self._shut_until is None:
            return
        self._is_alone = True
        self._admit()
        if not (self._line or self._probes or self.opens_in):
            self._open()

    def wait_for_others(self, seconds: float) -> None:
        """They try; they are asked again after so long, unless they are heard of before."""
        self._stop_timer()
        self._timer = self._clock.call_later(seconds, self._admit)

    @property
    def is_wanted(self) -> bool:
        self._drop_leavers()
        return self._shut_until is not None and bool(self._line) and not self.opens_in and not self._is_alone

    def _shut_for(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        self._shut_until = until if self._shut_until is None else max(self._shut_until, until)
        self._is_alone = self._others is None
        self._admit()

    def _admit(self) -> None:
        """Lets the first in line try, now or when the time has come, unless somebody is trying."""
        self._stop_timer()
        self._drop_leavers()
        if self._probes or not self._line:
            return
        if wait := self.opens_in:
            self._timer = self._clock.call_later(wait, self._admit)
        elif self._others is None or self._is_alone:
            self.let_in()
        else:
            self._others.ask()

    def let_in(self) -> None:
        self._drop_leavers()
        if self._line:
            self._probes += 1
            self._line.popleft().set_result(True)

    def _open(self) -> None:
        self._shut_until = None
        self._stop_timer()

    def _drop_leavers(self) -> None:
        while self._line and self._line[0].done():
            self._line.popleft()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Entry(msgspec.Struct, frozen=True):
    """One attempt that was let in through both gates of a model: as whose probe."""

    name: str
    circuit: Gate
    quota: Gate
    probes_circuit: bool = False
    probes_quota: bool = False


class Gates:
    """The gates of one Runtime: quota by whoever shares it, also with others; circuit by model."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quotas: dict[str, Gate] = {}
        self._circuits: dict[str, Gate] = {}
        self._failures: dict[str, int] = {}
        self._entries: dict[tuple[str, str], Entry] = {}
        self._store: SharesQuota | None = None
        self._others: dict[str, Others] = {}
        self._end: Callable[[], None] | None = None

    def share(self, store: SharesQuota) -> None:
        """With all processes that have this store: models that say who shares their quota."""
        self._store = store
        self._end = store.follow_quotas(self._heard)

    def part(self) -> None:
        """Shares no longer."""
        if self._end is not None:
            self._end()
        for others in self._others.values():
            others.close()
        for gate in self._quotas.values():
            gate.join(None)
        self._store = self._end = None
        self._others.clear()

    def quota(self, model: Model) -> Gate:
        quota = traits_of(model).quota
        return self._shared(digest_of(quota)) if quota else self._gate(self._quotas, model.name)

    def circuit(self, model: Model) -> Gate:
        return self._gate(self._circuits, model.name)

    def approach(self, model: Model) -> Entry:
        """Where an attempt has to pass; it may go ahead if both gates are open."""
        key = (model.name, traits_of(model).quota)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(model.name, self.circuit(model), self.quota(model))
        return entry

    async def enter(self, entry: Entry) -> Entry:
        """Waits until both gates let this one through; leaves neither with a probe that never answers."""
        probes_circuit = await entry.circuit.enter()
        try:
            probes_quota = await entry.quota.enter()
        except BaseException:
            if probes_circuit:
                entry.circuit.step_back()
            raise
        return replace(entry, probes_circuit=probes_circuit, probes_quota=probes_quota)

    def succeed(self, entry: Entry) -> None:
        if entry.circuit.is_open or entry.probes_circuit:
            self._failures.pop(entry.name, None)
        if entry.probes_circuit:
            entry.circuit.succeed()
        if entry.probes_quota:
            entry.quota.succeed()

    def fail(self, entry: Entry, error: ModelError, wait: float) -> None:
        """What an error means for everybody: a rate limit shuts the quota, failures in a row trip the circuit."""
        name = entry.name
        if error.kind == "rate_limited":
            entry.quota.shut(wait, by_probe=entry.probes_quota)
            entry = replace(entry, probes_quota=False)
        if error.kind in TRIPPING_KINDS:
            failures = self._failures[name] = self._failures.get(name, 0) + 1
            if failures >= TRIPS_AFTER:
                entry.circuit.shut(TRIPPED_FOR, by_probe=entry.probes_circuit)
                entry = replace(entry, probes_circuit=False)
        self.step_back(entry)

    def step_back(self, entry: Entry) -> None:
        """The attempt says nothing about the gates: whoever waits behind it may try."""
        if entry.probes_circuit:
            entry.circuit.step_back()
        if entry.probes_quota:
            entry.quota.step_back()

    def _heard(self, quota: str, seconds: float | None) -> None:
        self._shared(quota)
        self._others[quota].hear(seconds)

    def _shared(self, quota: str) -> Gate:
        gate = self._gate(self._quotas, quota)
        if self._store is not None and quota not in self._others:
            self._others[quota] = Others(self._store, self._clock, quota, gate)
            gate.join(self._others[quota])
        return gate

    def _gate(self, gates: dict[str, Gate], key: str) -> Gate:
        gate = gates.get(key)
        if gate is None:
            gate = gates[key] = Gate(self._clock)
        return gate


_NO_TRAITS = ModelTraits()


def traits_of(model: Model) -> ModelTraits:
    """What the model tells of itself; most models of tests tell nothing."""
    return getattr(model, "traits", _NO_TRAITS)
