"""Whose a type is: what in it belongs to pydantic and what to msgspec, found without importing pydantic."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from perdure.core.errors import UsageError
from perdure.runtime.plain import is_pydantic_class

Owner: TypeAlias = Literal["", "pydantic", "msgspec"]

_PYDANTIC_PACKAGES = ("pydantic", "pydantic_core", "pydantic_extra_types", "annotated_types")


class Survey:
    """What a type holds outside of classes that belong to one of the two: their insides are their owner's."""

    __slots__ = ("_seen", "msgspec", "pydantic", "pydantic_constraints")

    def __init__(self) -> None:
        self.pydantic = False
        self.pydantic_constraints = False
        self.msgspec = False
        # The types themselves are kept, so that no id is given to another one meanwhile.
        self._seen: dict[tuple[int, Owner], Any] = {}

    @classmethod
    def of(cls, annotation: Any) -> Survey:
        """Raises UsageError where a constraint sits in a class whose owner would ignore it."""
        survey = cls()
        survey._visit(annotation, "")
        return survey

    def _visit(self, annotation: Any, owner: Owner) -> None:
        origin = get_origin(annotation)
        if origin is Literal or (id(annotation), owner) in self._seen:
            return
        self._seen[id(annotation), owner] = annotation
        if origin is Annotated:
            for item in annotation.__metadata__:
                self._visit_constraint(item, owner, annotation)
        for inner in (
            *get_args(annotation)[: 1 if origin is Annotated else None],
            getattr(annotation, "__supertype__", None),  # of a NewType
            getattr(annotation, "__value__", None) if type(annotation).__name__ == "TypeAliasType" else None,
        ):
            self._visit(inner, owner)
        candidate = origin if isinstance(origin, type) else annotation
        if isinstance(candidate, type):
            self._visit_class(candidate, owner)

    def _visit_constraint(self, item: object, owner: Owner, annotation: Any) -> None:
        if isinstance(item, msgspec.Meta):
            if owner == "pydantic":
                raise UsageError(
                    f"pydantic would ignore the msgspec.Meta in {show_type(annotation)}; use pydantic.Field."
                )
            self.msgspec = self.msgspec or owner == ""
        elif _is_pydantic_constraint(item):
            if owner == "msgspec":
                raise UsageError(f"msgspec would ignore the constraint in {show_type(annotation)}; use msgspec.Meta.")
            if owner == "":
                self.pydantic = self.pydantic_constraints = True

    def _visit_class(self, candidate: type, owner: Owner) -> None:
        if is_pydantic_class(candidate):
            self.pydantic = self.pydantic or owner == ""
            owner = "pydantic"
        elif issubclass(candidate, msgspec.Struct):
            self.msgspec = self.msgspec or owner == ""
            owner = "msgspec"
        if candidate.__module__ == "builtins":
            return
        try:
            hints = get_type_hints(candidate, include_extras=True)
        except Exception:
            # pydantic knows names that only it can resolve, and has read the class already.
            if owner == "pydantic":
                return
            raise
        for hint in hints.values():
            self._visit(hint, owner)


def show_type(annotation: Any) -> str:
    """A type as a person would write it."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    if get_origin(annotation) is Annotated:
        return f"Annotated[{show_type(get_args(annotation)[0])}, …]"
    return str(annotation)


def _is_pydantic_constraint(item: object) -> bool:
    package = type(item).__module__.partition(".")[0]
    return package in _PYDANTIC_PACKAGES or hasattr(item, "__get_pydantic_core_schema__")
