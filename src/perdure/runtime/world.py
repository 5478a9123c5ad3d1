"""What one process lends to every session that it drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.core.codec import digest_of, encode_json
from perdure.core.messages import JSON
from perdure.ports import Clock, Model, Store
from perdure.runtime.middleware import Middleware
from perdure.runtime.schema import Codec
from perdure.runtime.threads import DaemonThreads


@dataclass
class World:
    """`models` and `outputs` hold what callers passed for single runs: the log has only their names."""

    store: Store
    clock: Clock
    threads: DaemonThreads
    resolve: Callable[[str], Model]
    model_override: Model | None = None
    deps: Any = None
    middleware: tuple[Middleware, ...] = ()
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    outputs: dict[str, Codec] = field(default_factory=dict[str, Codec])

    def model(self, name: str) -> Model:
        if name not in self.models:
            self.models[name] = self.resolve(name)
        return self.models[name]

    def lend(self, model: Model, own: Sequence[Model]) -> str:
        """The name by which a run finds a model that was passed to it; a second one of a name gets a number."""
        number, name = 1, model.name
        known = {item.name: item for item in own} | self.models
        while known.get(name, model) is not model:
            number += 1
            name = f"{model.name} ({number})"
        self.models[name] = model
        return name


def schema_key(schema: JSON) -> str:
    """Under which key the codec of an output schema is kept."""
    return digest_of(encode_json(schema))
