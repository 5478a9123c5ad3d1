"""What one process lends to every session that it drives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.core.actions import Action
from perdure.core.capacity import Capacity
from perdure.core.codec import digest_of, encode_json
from perdure.core.errors import UsageError
from perdure.core.events import Event
from perdure.core.messages import JSON
from perdure.core.queues import queue_for
from perdure.core.state import SessionState
from perdure.ports import Clock, Connected, Model, SharesQuota, Store
from perdure.runtime.agent import Binding
from perdure.runtime.drafts import DraftTimer
from perdure.runtime.gates import Gates
from perdure.runtime.hooks import Hooks
from perdure.runtime.mail import Mail
from perdure.runtime.middleware import Middleware
from perdure.runtime.schema import Codec
from perdure.runtime.threads import DaemonThreads

KEPT_MODELS = 1000
NO_BOUNDS = Capacity()


async def _nobody(name: str) -> Binding | None:
    return None


@dataclass
class World:
    """`models` and `outputs` hold what callers passed for single runs: the log has only their names.

    `stand_in` may answer an action in the place of whoever would perform it: a replay asks nobody.
    `scratch` holds, by tenant, the shared state keys that are not persistent. By `post` sessions reach each other,
    `agents` finds an agent by its name. `serves` says which queues this process serves; without it, all.
    `capacity` bounds what is driven, and what may wait. `quotas`: with whom they are shared, if not through the store.
    """

    store: Store
    clock: Clock
    threads: DaemonThreads
    resolve: Callable[[str], Model]
    model_override: Model | None = None
    deps: Any = None
    middleware: tuple[Middleware, ...] = ()
    hooks: tuple[Hooks, ...] = ()
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    outputs: dict[str, Codec] = field(default_factory=dict[str, Codec])
    connected: dict[int, Connected] = field(default_factory=dict[int, Connected])
    scratch: dict[str, dict[str, tuple[int, Any]]] = field(default_factory=dict[str, dict[str, tuple[int, Any]]])
    lent: int = 1
    agents: Callable[[str], Awaitable[Binding | None]] = _nobody
    stand_in: Callable[[Any, Action], Awaitable[Event | None]] | None = None
    post: Mail | None = None
    serves: Callable[[str], bool] | None = None
    capacity: Capacity = NO_BOUNDS
    quotas: SharesQuota | None = None
    gates: Gates = field(init=False)
    drafts: DraftTimer = field(init=False)

    def __post_init__(self) -> None:
        self.gates = Gates(self.clock)
        self.drafts = DraftTimer(self.clock)

    def may_do(self, state: SessionState, action: Action) -> bool:
        """Whether this process serves the queue of the work; what it does not serve, others find."""
        if self.serves is None:
            return True
        queue = queue_for(state, action)
        return queue is None or self.serves(queue)

    def model(self, name: str) -> Model:
        if name not in self.models:
            self._keep(name, self.resolve(name))
        return self.models[name]

    def ready(self, model: Model) -> Model:
        """The same model, prepared; it is closed with everything else."""
        if isinstance(model, Connected) and id(model) not in self.connected:
            model.prepare()
            self.connected[id(model)] = model
        return model

    async def close(self) -> None:
        """Connections and processes of the models that were made ready, and the timer of drafts."""
        self.drafts.close()
        connected, self.connected = self.connected, {}
        for model in connected.values():
            await model.close()

    def lend(self, model: Model, own: Sequence[Model]) -> str:
        """The name by which a run finds a model that was passed to it; a second one of a name gets a number."""
        for name, known in self.models.items():
            if known is model:
                return name
        if not callable(getattr(model, "stream", None)):
            raise UsageError(f"{model!r} is no model; give 'provider:name' or one of perdure.models.")
        name = model.name
        if name in self.models or any(item.name == name and item is not model for item in own):
            self.lent += 1
            name = f"{name} ({self.lent})"
        self._keep(name, model)
        return name

    def _keep(self, name: str, model: Model) -> None:
        self.models[name] = self.ready(model)
        if len(self.models) > KEPT_MODELS:
            del self.models[next(iter(self.models))]


def schema_key(schema: JSON) -> str:
    """Under which key the codec of an output schema is kept."""
    return digest_of(encode_json(schema))
