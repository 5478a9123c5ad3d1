"""The exception tree; a message says what happened and what to do.

PerdureError
├── UsageError       the caller's code, words or values are wrong: mend them
├── Refused          the command does not fit the session's present state
│   └── Busy         too many sessions wait already; `retry_after` says when to try again
├── NotFound         there is no such session, agent, decision or artifact
├── Conflict         somebody else was first: reload and look
│   └── StaleEpoch   another driver owns the session now: stop
├── ModelError       a model did not answer; `kind` says how, `retry_after` when to try again
├── StoreError       the store cannot serve; `retry_after` says when it may
│   └── TooNew       a newer version wrote it: leave it to that one, or upgrade
├── RunIncomplete    the output of a run that did not complete was asked for; `.result` has the rest
└── ToolError        raised by tools: it did not happen, and the model may read why
"""

from __future__ import annotations

from typing import Literal, get_args

ModelErrorKind = Literal[
    "rate_limited",  # too fast: wait
    "overloaded",  # the provider has too much to do
    "server",  # it failed by itself
    "connect",  # no connection, or lost before the answer began
    "first_byte",  # connected, and then silence
    "idle",  # silence in the middle of the answer
    "cut",  # the answer broke off, or is not what was agreed on
    "in_band",  # an error inside of an answer that had begun well
    "quota_exhausted",  # the account has nothing left: waiting does not help
    "auth",  # no key, a wrong one, or one that may not do this
    "not_found",  # no such model or address
    "invalid_request",
    "context_too_long",
    "content_filtered",
    "truncated",  # the output limit came before any word or call
]

RETRYABLE_KINDS: frozenset[ModelErrorKind] = frozenset(
    ("rate_limited", "overloaded", "server", "connect", "first_byte", "idle", "cut", "in_band")
)

REQUEST_KINDS: frozenset[ModelErrorKind] = frozenset(
    ("invalid_request", "context_too_long", "content_filtered", "truncated")
)
"""What is wrong with the request itself; another model is not asked the same."""


class PerdureError(Exception):
    """The root: whatever Perdure raises on purpose."""


class UsageError(PerdureError):
    """The caller's code, words or values are wrong."""


class Refused(PerdureError):
    """The command is not valid in the session's present state."""


class Busy(Refused):
    """Too many sessions wait already: nothing was written."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotFound(PerdureError):
    """There is no such thing."""


class Conflict(PerdureError):
    """Somebody else was first."""


class StaleEpoch(Conflict):
    """Another driver has claimed the session."""


class StoreError(PerdureError):
    """The store cannot serve this now."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooNew(StoreError):
    """What a newer version has written, and this one cannot read."""


class TransactionLost(PerdureError):
    """What a tool wrote in a transaction is gone, and nothing of it has happened."""


class ToolError(PerdureError):
    """A tool's own word that nothing happened; the model reads the message."""


class ModelError(PerdureError):
    """A model call failed; the kind is a class, never a search in text."""

    def __init__(self, message: str, *, kind: ModelErrorKind = "server", retry_after: float | None = None) -> None:
        if kind not in get_args(ModelErrorKind):
            raise UsageError(f"{kind!r} is no kind of model error; take one of {get_args(ModelErrorKind)}.")
        super().__init__(message)
        self.kind: ModelErrorKind = kind
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        return self.kind in RETRYABLE_KINDS

    @property
    def switchable(self) -> bool:
        """Whether another model might answer where this one did not."""
        return self.kind not in REQUEST_KINDS

    @classmethod
    def rate_limited(cls, message: str = "rate limited", *, retry_after: float | None = None) -> ModelError:
        return cls(message, kind="rate_limited", retry_after=retry_after)


class RunIncomplete(PerdureError):
    """The run has no output: it waits, or ended for another reason than completed."""

    def __init__(self, message: str, result: object) -> None:
        super().__init__(message)
        self.result = result
