"""Guardrails: functions that see every input before the model does, and every answer before anybody keeps it.

Rule 1: they have the last word, behind hooks and middleware. Rule 2: one that fails or is late blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from perdure.core.errors import UsageError
from perdure.runtime.directives import Block, Retry
from perdure.runtime.hooks import TIMEOUT
from perdure.runtime.moments import AnswerMoment, InputMoment

InputVerdict: TypeAlias = Block | bool | None
OutputVerdict: TypeAlias = Block | Retry | bool | None
InputGuard: TypeAlias = Callable[[InputMoment], InputVerdict | Awaitable[InputVerdict]]
OutputGuard: TypeAlias = Callable[[AnswerMoment], OutputVerdict | Awaitable[OutputVerdict]]


@dataclass(frozen=True, kw_only=True)
class Guardrail:
    """Functions, sync or async. None or True accepts; `Block(why)`, or False, refuses; of an output, `Retry(feedback)`.

    A refused input, and an answer that does not count, reach neither the history nor the log.
    """

    input: InputGuard | None = None
    output: OutputGuard | None = None
    name: str = ""
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        if self.input is None and self.output is None:
            raise UsageError("Guardrail() guards nothing; give it input=, output=, or both.")
        for function in (self.input, self.output):
            if function is not None and not callable(function):  # pyright: ignore[reportUnnecessaryComparison]
                raise UsageError(f"Guardrail({function!r}): a guardrail is a function of one moment.")
        if not self.timeout > 0:
            raise UsageError(f"Guardrail(timeout={self.timeout!r}): give a number of seconds, more than 0.")

    def called(self, function: object) -> str:
        """What it is called, in what people read."""
        return self.name or getattr(function, "__name__", None) or type(function).__name__
