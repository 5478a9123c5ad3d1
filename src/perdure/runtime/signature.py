"""A function -> what a model has to know of it: its parameters, with types and words, without the context.

Rule: what cannot be described truthfully is refused, with the names of the function and the parameter.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from types import FrameType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from perdure.core.errors import UsageError
from perdure.ports import Transaction
from perdure.runtime.context import ToolContext

REQUIRED: Any = inspect.Parameter.empty

_SECTIONS = re.compile(r"^\s*(?:Args|Arguments|Parameters|Params)\s*:?\s*$|^\s*:param\b", re.MULTILINE)


class Parameter(msgspec.Struct, frozen=True):
    name: str
    annotation: Any
    default: Any = REQUIRED
    description: str = ""


class Signature(msgspec.Struct, frozen=True):
    """`context` names the parameter that takes the ToolContext, `data_type` is what it wants data to be.

    `transaction` names the one that takes the Transaction.
    """

    description: str
    parameters: tuple[Parameter, ...]
    context: str | None = None
    context_index: int = 0
    context_required: bool = False
    data_type: Any = None
    transaction: str | None = None


def function_name(function: Callable[..., Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", None) or type(inner).__name__


def underlying(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that runs: of a partial, of an object with __call__, of a static method."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, staticmethod):
            function = cast("Callable[..., Any]", function.__func__)
        elif inspect.isroutine(function) or isinstance(function, type):
            return function
        else:
            return type(function).__call__


def enclosing_names(function: Callable[..., Any], frame: FrameType | None) -> dict[str, Any]:
    """The names in the frame that string annotations mention: no closure keeps what only they use."""
    if frame is None or frame.f_locals is frame.f_globals:
        return {}
    try:
        annotations: Mapping[str, Any] = getattr(underlying(function), "__annotations__", {})
    except NameError:  # lazy annotations that name what is not defined yet
        return {}
    words = " ".join(text for text in annotations.values() if isinstance(text, str))
    names = set(re.findall(r"[^\W\d]\w*", words))
    return {name: frame.f_locals[name] for name in names if name in frame.f_locals}


def read_signature(function: Callable[..., Any], label: str, names: Mapping[str, Any]) -> Signature:
    """Compiles a function; `names` are those of the place where it was decorated."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"{label}: its parameters cannot be read ({error}); wrap it in a function.") from None
    bound = function.keywords if isinstance(function, functools.partial) else {}
    target = underlying(cast("Callable[..., Any]", function))
    described = [p for p in signature.parameters.values() if p.name not in bound]
    types = {p.name: _type_of(p, target, label, names) for p in described}
    contexts = [p for p in described if _context_of(types[p.name]) is not None]
    if len(contexts) > 1:
        raise UsageError(f"{label}: {contexts[1].name!r} is a second ToolContext; keep one.")
    transactions = [p for p in described if types[p.name] is Transaction]
    if len(transactions) > 1:
        raise UsageError(f"{label}: {transactions[1].name!r} is a second Transaction; keep one.")
    transaction = transactions[0].name if transactions else None
    plain = [p for p in described if p not in contexts and p not in transactions]
    description, words = read_docstring(inspect.getdoc(target) or "", [p.name for p in plain])
    parameters = tuple(_parameter(p, types[p.name], words.get(p.name, ""), label) for p in plain)
    if not contexts:
        return Signature(description, parameters, transaction=transaction)
    context = contexts[0]
    return Signature(
        description,
        parameters,
        context.name,
        list(signature.parameters).index(context.name),
        context.default is REQUIRED,
        _data_type(_context_of(types[context.name])),
        transaction,
    )


def _parameter(parameter: inspect.Parameter, annotation: Any, words: str, label: str) -> Parameter:
    default = parameter.default
    if type(default).__module__.partition(".")[0] == "pydantic" and type(default).__name__ == "FieldInfo":
        right = f"{parameter.name}: Annotated[…, Field(…)]"
        raise UsageError(f"{label}: {parameter.name!r} has a Field(…) for a default; write {right}.")
    if default is None and type(None) not in get_args(annotation):
        annotation = annotation | None if isinstance(annotation, type) else Union[annotation, None]  # noqa: UP007
    return Parameter(parameter.name, annotation, default, words)


def _type_of(parameter: inspect.Parameter, target: Callable[..., Any], label: str, names: Mapping[str, Any]) -> Any:
    name = parameter.name
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise UsageError(f"{label}: *{name} has no fixed form; give every parameter a name and a type.")
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UsageError(f"{label}: {name!r} is positional-only, but models pass arguments by name; remove the '/'.")
    if parameter.annotation is REQUIRED:
        hint = "pass the bound method (tool(thing.method))" if name == "self" else f"write {name}: str, for example"
        raise UsageError(f"{label}: the parameter {name!r} has no type; {hint}.")
    return _resolve(parameter, target, label, names)


def _resolve(parameter: inspect.Parameter, target: Callable[..., Any], label: str, names: Mapping[str, Any]) -> Any:
    inner = inspect.unwrap(target)
    inner = getattr(inner, "__func__", inner)
    free = getattr(getattr(inner, "__code__", None), "co_freevars", ())
    cells = getattr(inner, "__closure__", None) or ()
    closure = {name: cell.cell_contents for name, cell in zip(free, cells, strict=True) if _is_filled(cell)}

    def holder() -> None: ...

    holder.__annotations__ = {"it": parameter.annotation}
    try:
        hints = get_type_hints(holder, getattr(inner, "__globals__", {}), {**closure, **names}, include_extras=True)
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs user code
        raise UsageError(
            f"{label}: the type of {parameter.name!r} cannot be read ({error}); "
            "define what it names at the top of the module."
        ) from None
    return hints["it"]


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _context_of(annotation: Any) -> Any:
    """The ToolContext type within an annotation (itself, optional or annotated), or None."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        found = (_context_of(arg) for arg in get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None])
        return next((context for context in found if context is not None), None)
    return annotation if annotation is ToolContext or get_origin(annotation) is ToolContext else None


def _data_type(context: Any) -> Any:
    args = get_args(context)
    if len(args) < 2 or args[1] in (Any, None, type(None), object) or isinstance(args[1], TypeVar):
        return None
    return args[1]


def read_docstring(doc: str, names: list[str]) -> tuple[str, dict[str, str]]:
    """What stands before the parameters, and the words on each: `name: words` lines, or a known style."""
    if _SECTIONS.search(doc):
        import docstring_parser

        parsed = docstring_parser.parse(doc)
        found = {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}
        if words := {name: text for name, text in found.items() if name in names}:
            return (parsed.description or "").strip(), words
    return _read_plain(doc, names)


def _read_plain(doc: str, names: list[str]) -> tuple[str, dict[str, str]]:
    before: list[str] = []
    words: dict[str, str] = {}
    current = ""
    for line in doc.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name in names:
            current = name
            words[current] = rest.strip()
        elif current and line[:1].isspace() and line.strip():
            words[current] = f"{words[current]} {line.strip()}".strip()
        elif not words:
            before.append(line)
        else:
            current = ""
    return "\n".join(before).strip(), words
