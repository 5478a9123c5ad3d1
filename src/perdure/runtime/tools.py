"""@tool: a function, what it does to the world, and how a model's words become its arguments.

Rule 1: a tool never changes; what is costly to know of it is compiled on first use and kept.
Rule 2: arguments that do not fit exactly never reach the function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeAlias,
    TypedDict,
    Unpack,
    cast,
    get_args,
    get_type_hints,
    overload,
)

import msgspec

from perdure.core.codec import decode_json
from perdure.core.errors import UsageError
from perdure.core.fits import check_schema, misfit
from perdure.core.messages import JSON
from perdure.core.specs import Effect, OnUnknown, ToolKind, ToolSpec
from perdure.ports import Transaction
from perdure.runtime.context import ToolContext
from perdure.runtime.plain import to_plain
from perdure.runtime.policy import Predicate
from perdure.runtime.schema import Codec, codec_of, struct_codec
from perdure.runtime.signature import (
    REQUIRED,
    Signature,
    enclosing_names,
    function_name,
    read_signature,
    underlying,
)
from perdure.runtime.subagents import SubAgent

if TYPE_CHECKING:
    # Type checkers bring typing_extensions along: a bare `Tool` means any tool.
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

OnExpiry: TypeAlias = Literal["deny", "approve"] | tuple[Literal["answer"], Any]

Condition: TypeAlias = Callable[[ToolContext[Any, Any]], bool | Awaitable[bool]]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """What `@tool(…)` takes.

    effect: read | idempotent | once (default: at most once, then ask) | transactional (it takes a Transaction)
    kind: function (default) | external | frontend | question: then the function only describes the call and its result,
        which somebody else brings
    timeout, expires: seconds, for the call and for a decision about it
    on_expiry: what is decided when nobody did: "deny" (default), "approve", or ("answer", value)
    hidden: the model sees it only in a turn for which another tool asked with ctx.next_turn(show=[…])
    deferred: the model sees it after it has found it with the tool find_tools
    background: the model goes on at once, and is told of the outcome when it is there
    retries: so often a read or idempotent tool is tried again when it fails
    ask: True, or a predicate `(call) -> bool`
    when: a function of the ToolContext, async or not: whether the model sees the tool in this turn
    sequential: waits for the calls before it
    on_unknown: after a crash "ask" a person or "tell" the model
    key: a function of the same arguments whose str replaces the idempotency key
    queue: only workers that serve this queue run it, where workers were told which to serve
    """

    effect: Effect
    timeout: float | None
    ask: bool | Predicate
    sequential: bool
    on_unknown: OnUnknown
    name: str | None
    description: str | None
    key: Callable[..., str | None] | None
    expires: float | None
    on_expiry: OnExpiry
    kind: ToolKind
    retries: int
    background: bool
    hidden: bool
    deferred: bool
    when: Condition | None
    queue: str


class Compiled(msgspec.Struct, frozen=True):
    signature: Signature
    codec: Codec
    defaults: dict[str, Any]
    data_codec: Codec | None
    spec: ToolSpec


class Tool(msgspec.Struct, Generic[P, R], frozen=True, eq=False, dict=True, kw_only=True):
    """A described function; stays callable as the function is."""

    function: Callable[P, R]
    name: str
    effect: Effect = "once"
    declared_effect: bool = False
    timeout: float | None = None
    ask: bool | Predicate = False
    sequential: bool = False
    on_unknown: OnUnknown = "ask"
    description: str | None = None
    key: Callable[..., str | None] | None = None
    expires: float | None = None
    on_expiry: OnExpiry = "deny"
    kind: ToolKind = "function"
    retries: int = 0
    background: bool = False
    hidden: bool = False
    deferred: bool = False
    when: Condition | None = None
    queue: str = ""
    enclosing: Mapping[str, Any] = {}
    sub_agent: SubAgent | None = None

    def __post_init__(self) -> None:
        _check(self)
        like_function = {
            "__wrapped__": self.function,
            "__name__": self.name,
            "__doc__": self.function.__doc__,
        }
        cast("dict[str, Any]", self.__dict__).update(like_function)

    @cached_property
    def is_async(self) -> bool:
        """Whether a call has to be awaited; so has one through a plain wrapper around an async function."""
        target = underlying(self.function)
        return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(inspect.unwrap(target))

    def check(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Makes the tool resumable: it starts an operation and returns its id; this one follows it to its outcome.

        `async def (operation, ctx)` returns the result. After a crash it is called again, the tool itself never.
        """
        return self._attach("check", function)

    def cancel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Ends the operation of a resumable tool whose call is cancelled: `async def (operation, ctx)`."""
        return self._attach("cancel", function)

    def listen(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Prepares calls before anybody judges them: an async generator of the tool's arguments that yields Prepared.

        The policy and whoever approves see the snapshot; the tool finds it in `ctx.prepared`.
        """
        return self._attach("listen", function)

    def attached(self, name: str) -> Callable[..., Any] | None:
        """The function that was given with `@tool.check`, `@tool.cancel` or `@tool.listen`."""
        return self.__dict__.get(f"_{name}")

    def _attach(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if "_compiled" in self.__dict__:
            raise UsageError(f"Tool {self.name!r} is in use already; give it its {name} function right behind it.")
        cast("dict[str, Any]", self.__dict__)[f"_{name}"] = function
        return function

    @property
    def spec(self) -> ToolSpec:
        return self._compiled.spec

    @property
    def context_name(self) -> str | None:
        """The parameter that takes the ToolContext."""
        return self._compiled.signature.context

    @property
    def data_type(self) -> Any:
        """The second argument of ToolContext[Deps, Data]; None where it is not given."""
        return self._compiled.signature.data_type

    @property
    def data_codec(self) -> Codec | None:
        return self._compiled.data_codec

    def parse(self, arguments: str) -> dict[str, Any]:
        """The values for the function, defaults included; a ValueError tells the model what does not fit."""
        compiled = self._compiled
        try:
            decoded = compiled.codec.decode((arguments or "{}").encode())
        except UnicodeEncodeError:
            raise ValueError("the text holds a lone surrogate.") from None
        except ValueError as error:
            raise ValueError(self._complaint(arguments) or str(error)) from None
        values = msgspec.structs.asdict(decoded)
        for name, default in compiled.defaults.items():
            if values[name] is msgspec.UNSET:
                values[name] = default
        return values

    def business_key(self, values: Mapping[str, Any]) -> str | None:
        """The tool's own idempotency key, from its `key=`."""
        if self.key is None:
            return None
        made = cast(object, self.key(**values))
        if made is None or (isinstance(made, str) and made):
            return made
        raise UsageError(f"Tool {self.name!r}: key= returned {made!r}; it has to return a str or None.")

    def invoke(
        self, values: Mapping[str, Any], ctx: ToolContext[Any, Any], transaction: Transaction | None = None
    ) -> Any:
        """Calls the function with parsed values; of an async one this is the awaitable."""
        signature = self._compiled.signature
        call: Callable[..., Any] = self.function
        if signature.context is None and signature.transaction is None:
            return call(**values)
        given: dict[str, Any] = {} if signature.context is None else {signature.context: ctx}
        if signature.transaction is not None:
            given[signature.transaction] = transaction
        return call(**values, **given)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        signature = self._compiled.signature
        name = signature.context
        if signature.context_required and name not in kwargs and len(args) <= signature.context_index:
            raise UsageError(f"{self.name}() needs its context; pass {name}=ToolContext.fake(…).")
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """A tool that was made of a method, bound to its object."""
        bind = getattr(self.function, "__get__", None)
        if instance is None or bind is None:
            return self
        return msgspec.structs.replace(cast("Tool[..., R]", self), function=bind(instance, owner))

    @cached_property
    def _compiled(self) -> Compiled:
        label = f"Tool {self.name!r}"
        signature = read_signature(self.function, label, self.enclosing)
        codec = _arguments_codec(signature, label)
        spec = ToolSpec(
            self.name,
            signature.description if self.description is None else self.description,
            _describe(codec.schema, signature),
            "resumable" if self.attached("check") else _effect(self, signature, label),
            self.on_unknown,
            self.sequential,
            self.timeout,
            asks=self.ask is not False,
            kind=self.kind,
            response=_response_schema(self.function) if self.kind not in ("function", "agent") else None,
            listens=self.attached("listen") is not None,
            retries=self.retries,
            background=self.background,
            hidden=self.hidden,
            deferred=self.deferred,
            queue=self.queue,
        )
        given = self.on_expiry[1] if isinstance(self.on_expiry, tuple) else None
        if spec.response is not None and given is not None and (wrong := misfit(spec.response, given)):
            raise UsageError(f"{label}: the answer of on_expiry does not fit ({wrong}); mend it.")
        defaults = {p.name: p.default for p in signature.parameters if p.default is not REQUIRED}
        return Compiled(signature, codec, defaults, _data_codec(signature, label), spec)

    def _complaint(self, arguments: str) -> str:
        """Missing and unknown arguments, all of them and by name."""
        try:
            given = decode_json(arguments or "{}")
        except ValueError:
            return ""
        if not isinstance(given, dict):
            return "The arguments have to be one JSON object."
        names = [p.name for p in self._compiled.signature.parameters]
        unknown = [name for name in cast("dict[str, JSON]", given) if name not in names]
        missing = [name for name in names if name not in given and name not in self._compiled.defaults]
        complaints = [f"there is no argument `{name}`" for name in unknown]
        complaints += [f"the argument `{name}` is missing" for name in missing]
        if not complaints:
            return ""
        return f"{'; '.join(complaints)}. The arguments are: {', '.join(names) or 'none'}."


@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> Tool[P, R]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool[..., Any] | Callable[[Callable[..., Any]], Tool[..., Any]]:
    """Makes a function a tool: `@tool`, `@tool(effect="read", …)` or `tool(function, …)`; see ToolOptions."""
    if function is not None:
        return _make(function, options, _caller())

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        return _make(function, options, _caller())

    return decorate


def as_tool(function: Any) -> Tool[..., Any]:
    """The tool itself, an agent as one, or a plain function as a tool with the default effect."""
    if isinstance(function, Tool):
        return cast("Tool[..., Any]", function)
    of_agent = getattr(function, "as_tool", None)
    return of_agent() if of_agent is not None else _make(function, {}, None)


def check_names(tools: Sequence[Tool[..., Any]]) -> None:
    """Refuses two tools of one name."""
    seen: set[str] = set()
    for item in tools:
        if item.name in seen:
            raise UsageError(f"Two tools are called {item.name!r}; give one of them another name=.")
        seen.add(item.name)


def check_declared(tools: Sequence[ToolSpec], own: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Tools that a caller carries out for one run: each with a name of its own and schemas that can be checked."""
    names = {tool.name for tool in own}
    for spec in tools:
        if spec.kind == "function":
            raise UsageError(f"The tool {spec.name!r} is a function; declare frontend(…) tools for a run.")
        if spec.name in names:
            raise UsageError(f"A tool is called {spec.name!r} already; give the one of this run another name.")
        names.add(spec.name)
        for schema in (spec.parameters, spec.response):
            if schema is not None:
                check_schema(schema)
    return tuple(tools)


def _make(function: Any, options: ToolOptions, frame: FrameType | None) -> Tool[..., Any]:
    if not callable(function):
        raise UsageError(f"{function!r} is no function; a tool is made of something that can be called.")
    unknown = options.keys() - ToolOptions.__annotations__.keys()
    if unknown:
        raise UsageError(f"@tool has no option {min(unknown)!r}; take {', '.join(ToolOptions.__annotations__)}.")
    given: dict[str, Any] = {**options, "name": options.get("name") or function_name(function)}
    return Tool(
        function=function,
        declared_effect="effect" in options,
        enclosing=enclosing_names(function, frame),
        **given,
    )


def _caller() -> FrameType | None:
    """The frame that called the function that calls this."""
    frame = inspect.currentframe()
    return frame.f_back.f_back if frame and frame.f_back else None


def _check(made: Tool[..., Any]) -> None:
    label = f"Tool {made.name!r}"
    if not _NAME.fullmatch(made.name):
        raise UsageError(
            f"{label}: models take names of 1 to 64 letters, digits, '_' and '-' only; give it another name=."
        )
    if made.effect not in get_args(Effect):
        raise UsageError(
            f"{label}: effect={made.effect!r} is none; take 'read', 'idempotent', 'once' or 'transactional'."
        )
    if made.on_unknown not in get_args(OnUnknown):
        raise UsageError(f"{label}: on_unknown={made.on_unknown!r} is none; take 'ask' or 'tell'.")
    for option, seconds in (("timeout", made.timeout), ("expires", made.expires)):
        if seconds is not None and not _is_positive(seconds):
            raise UsageError(f"{label}: {option}={seconds!r}; give seconds above 0, or None.")
    if not isinstance(made.ask, bool) and not callable(made.ask):
        raise UsageError(f"{label}: ask={made.ask!r}; give True, False or a predicate.")
    if made.key is not None and not callable(made.key):
        raise UsageError(f"{label}: key={made.key!r}; give a function of the tool's arguments.")
    if made.when is not None and not callable(made.when):
        raise UsageError(f"{label}: when={made.when!r}; give a function of the ToolContext.")
    if made.kind not in get_args(ToolKind):
        raise UsageError(f"{label}: kind={made.kind!r} is none; take one of {', '.join(get_args(ToolKind))}.")
    if made.kind == "agent" and made.sub_agent is None:
        raise UsageError(f"{label}: kind='agent' is for agents; write agent.as_tool(…).")
    _check_queue(made, label)
    if made.retries < 0 or (made.retries and made.effect not in ("read", "idempotent")):
        raise UsageError(f"{label}: retries={made.retries}; only what is read or idempotent may be tried again.")
    is_answer = isinstance(made.on_expiry, tuple) and len(made.on_expiry) == 2 and made.on_expiry[0] == "answer"
    if made.on_expiry not in ("deny", "approve") and not is_answer:
        raise UsageError(f"{label}: on_expiry={made.on_expiry!r}; take 'deny', 'approve' or ('answer', value).")
    if made.kind != "function" and made.on_expiry == "approve":
        raise UsageError(f"{label}: on_expiry='approve' brings no result; take 'deny' or ('answer', value).")
    target = underlying(made.function)
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise UsageError(f"{label}: it is a generator; return one result and report on the way with ctx.progress().")


def _check_queue(made: Tool[..., Any], label: str) -> None:
    if not isinstance(made.queue, str):  # pyright: ignore[reportUnnecessaryIsInstance] - user code
        raise UsageError(f"{label}: queue={made.queue!r}; give the name of a queue.")
    if made.queue and made.kind != "function":
        raise UsageError(f"{label}: queue={made.queue!r}, but nothing of it runs here; queues are for functions.")


def _is_positive(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0


def _arguments_codec(signature: Signature, label: str) -> Codec:
    try:
        return struct_codec(
            [
                (p.name, p.annotation) if p.default is REQUIRED else (p.name, p.annotation, msgspec.UNSET)
                for p in signature.parameters
            ]
        )
    except UsageError as whole:
        for parameter in signature.parameters:
            try:
                codec_of(parameter.annotation)
            except UsageError as error:
                raise UsageError(f"{label}: the parameter {parameter.name!r}: {error}") from None
        raise UsageError(f"{label}: {whole}") from None


def _response_schema(function: Callable[..., Any]) -> JSON:
    """What the result of a call has to fit that somebody else carries out: its return annotation."""
    hints = get_type_hints(underlying(function), include_extras=True)
    returned = hints.get("return", Any)
    if returned is Any:
        return None
    schema = codec_of(returned).schema
    check_schema(schema)
    return schema


def _effect(made: Tool[..., Any], signature: Signature, label: str) -> Effect:
    """A tool that takes a Transaction is transactional, whether it says so or not."""
    if signature.transaction is None:
        if made.effect == "transactional":
            raise UsageError(f"{label}: a transactional tool writes with a Transaction; add a parameter of that type.")
        return made.effect
    if made.declared_effect and made.effect != "transactional":
        raise UsageError(f"{label}: it takes a Transaction, so its effect is 'transactional', not {made.effect!r}.")
    if made.background or made.kind != "function":
        raise UsageError(
            f"{label}: it takes a Transaction, so it cannot be carried out elsewhere or in the background."
        )
    return "transactional"


def _data_codec(signature: Signature, label: str) -> Codec | None:
    if signature.data_type is None:
        return None
    try:
        return codec_of(signature.data_type)
    except UsageError as error:
        raise UsageError(f"{label}: the data of {signature.context!r}: {error}") from None


def _describe(schema: dict[str, JSON], signature: Signature) -> dict[str, JSON]:
    """The arguments' schema with the words of the docstring and the defaults of the signature."""
    properties: dict[str, JSON] = dict(schema["properties"])
    for parameter in signature.parameters:
        described = dict(properties[parameter.name])
        explicit = any(getattr(item, "description", None) for item in getattr(parameter.annotation, "__metadata__", ()))
        if parameter.description and not explicit:
            described["description"] = parameter.description
        if parameter.default is not REQUIRED:
            try:
                described["default"] = to_plain(parameter.default)
            except ValueError:
                described.pop("default", None)
        properties[parameter.name] = described
    return {key: value for key, value in {**schema, "properties": properties}.items() if key != "title"}
