"""The shape of the code, as docs/architecture.md promises it; what import-linter checks is not repeated here."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import perdure
from perdure import ports
from perdure.core.events import Event

SOURCE = Path(perdure.__file__).parent

MODULE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 8
CORE_LINES = 2000
VOCABULARY = {"messages", "specs", "events", "commands", "actions", "deltas", "errors", "state", "capacity"}
"""The modules of the core that only declare; the closed unions in them have their own budget."""
MECHANISMS = {"codec", "shared", "fits", "upcast", "repair"}
"""The modules of the core that know nothing of agents."""
EVENT_KINDS = 26

MANY_PARAMETERS = {
    # A command's parameters are the options that a user types, and its body gets them all.
    "cli/decide.py:decide",
    "cli/decide.py:_decide",
    "cli/run.py:run",
    "cli/run.py:_run",
    "cli/triggers.py:add",
    "cli/worker.py:worker",
    # What a deployment may set of its database; each has a default.
    "stores/postgres.py:__init__",
    # What one run may have of its own: the surface names each of them.
    "runtime/session.py:run",
    "runtime/session.py:start",
    # What a process is made of: the surface names each of them.
    "wiring.py:__init__",
}
"""Where more than eight parameters are right; every entry says why."""

NO_NAMES = {"manager", "handler", "helper", "helpers", "base", "impl", "service", "util", "utils", "common", "misc"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module:
    """A source file, read once."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.code = _code_lines(text, self.tree)

    @property
    def functions(self) -> Iterator[Function]:
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    """The lines that are neither blank, nor comment, nor docstring."""
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in no_code:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        # A string that stands for itself is a docstring, wherever it stands.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def _read(path: Path) -> Module:
    return Module(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))


MODULES = [_read(path) for path in sorted(SOURCE.rglob("*.py"))]
CORE = [module for module in MODULES if module.name.startswith("core/")]


# Sizes


def too_long_functions(module: Module) -> list[str]:
    return [
        f"{module.name}:{function.name} has {length} lines"
        for function in module.functions
        if (length := len(module.code & set(range(function.lineno, (function.end_lineno or 0) + 1)))) > FUNCTION_LINES
    ]


def too_many_parameters(module: Module) -> list[str]:
    found: list[str] = []
    for function in module.functions:
        arguments = function.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([name for name in names if name not in ("self", "cls")])
        if count > PARAMETERS and f"{module.name}:{function.name}" not in MANY_PARAMETERS:
            found.append(f"{module.name}:{function.name} has {count} parameters")
    return found


def test_no_module_is_longer_than_it_may_be() -> None:
    assert [f"{m.name}: {len(m.code)}" for m in MODULES if len(m.code) > MODULE_LINES] == []


def test_no_function_is_longer_than_it_may_be() -> None:
    assert [found for module in MODULES for found in too_long_functions(module)] == []


def test_no_function_takes_more_than_it_may() -> None:
    assert [found for module in MODULES for found in too_many_parameters(module)] == []
    known = {f"{module.name}:{function.name}" for module in MODULES for function in module.functions}
    assert known >= MANY_PARAMETERS, "an exception that nothing needs any more has to go"


def test_the_core_stays_small() -> None:
    sizes = {module.name.removeprefix("core/").removesuffix(".py"): len(module.code) for module in CORE}
    assert sum(size for name, size in sizes.items() if name not in VOCABULARY | MECHANISMS) <= CORE_LINES
    assert sizes.keys() >= VOCABULARY | MECHANISMS


def test_the_union_of_events_stays_small() -> None:
    assert len(get_args(Event)) <= EVENT_KINDS


# Names and words


def empty_names(module: Module) -> list[str]:
    """Names of modules, classes and functions that say nothing; a fork's base is a thing, a Base class is none."""
    things = [*module.name.removesuffix(".py").split("/"), *(c.name for c in module.classes)]
    found = [name for name in things if NO_NAMES & set(_words(name))]
    found += [f.name for f in module.functions if (NO_NAMES - {"base"}) & set(_words(f.name))]
    return [f"{module.name}: {name}" for name in found]


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def test_names_say_what_a_thing_is() -> None:
    assert [found for module in MODULES for found in empty_names(module)] == []


def test_every_module_says_what_it_is_for() -> None:
    assert [module.name for module in MODULES if module.code and not ast.get_docstring(module.tree)] == []


def test_nothing_is_put_off_and_no_check_is_silenced_without_a_reason() -> None:
    put_off = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    silenced = re.compile(r"#\s*(type: ignore|pyright: ignore|noqa)(?P<rules>[^#]*)")
    found: list[str] = []
    for module in MODULES:
        for number, line in enumerate(module.lines, 1):
            if put_off.search(line):
                found.append(f"{module.name}:{number} puts something off")
            if "type: ignore" in line:
                found.append(f"{module.name}:{number} ignores types; use pyright: ignore[rule]")
            match = silenced.search(line)
            if match and not re.search(r"\[|BLE001 - |[A-Z]+\d+", match["rules"]):
                found.append(f"{module.name}:{number} silences everything")
    assert found == []


# Behaviour in base classes, globals


def test_no_class_inherits_behaviour_of_ours() -> None:
    """Plain data, interfaces and the exception tree may be derived from: a reader has to look nothing up there."""
    ours = {c.name: c for m in MODULES for c in m.classes}
    plain = {"Plain"} | {name for name, c in ours.items() if any("Protocol" in ast.unparse(b) for b in c.bases)}

    def is_error(name: str) -> bool:
        bases = [ast.unparse(base) for base in ours[name].bases] if name in ours else []
        return name == "Exception" or any(map(is_error, bases))

    found = [
        f"{module.name}:{node.name}({base})"
        for module in MODULES
        for node in module.classes
        for base in (ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
        if base in ours and base not in plain and not is_error(base)
    ]
    assert found == []


def test_no_globals_are_rebound() -> None:
    assert [m.name for m in MODULES for node in ast.walk(m.tree) if isinstance(node, ast.Global)] == []


# Facts enter only through append


def appends_to_a_store(module: Module) -> list[int]:
    """Where a store's `append` is reached for, called or not, or a Batch is made."""
    found = [node.lineno for node in appends(module) if re.search(r"\b_?store$", ast.unparse(node.value))]
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call)]
    return found + [node.lineno for node in calls if ast.unparse(node.func).split(".")[-1] == "Batch"]


def appends(module: Module) -> list[ast.Attribute]:
    return [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute) and node.attr == "append"]


def test_only_the_log_appends_to_the_store() -> None:
    """Drivers, the host and every door go through SessionLog.append; only tests of stores speak to them directly."""
    callers = {module.name for module in MODULES if appends_to_a_store(module)}
    assert {name for name in callers if not name.startswith("testing/")} == {"runtime/log.py"}


def test_only_append_inserts_records_and_nothing_changes_them() -> None:
    texts = {module.name: module.text for module in MODULES}
    texts |= {path.relative_to(SOURCE).as_posix(): path.read_text() for path in SOURCE.rglob("*.sql")}
    assert [name for name, text in texts.items() if re.search(r"insert\s+into\s+records", text, re.I)] == [
        "stores/sqlite_appends.py"
    ]
    assert [name for name, text in texts.items() if re.search(r"(update|replace\s+into)\s+records", text, re.I)] == []
    assert [name for name, text in texts.items() if re.search(r"delete\s+from\s+records", text, re.I)] == [
        "stores/sqlite_writes.py"
    ]


def test_the_log_of_a_session_is_written_by_drivers_and_commands_alone() -> None:
    """Whoever holds a SessionLog may append: the driver (facts, intents), the host (commands, openings), and the post,
    which opens children.
    """
    found = {
        module.name
        for module in MODULES
        for node in appends(module)
        if re.search(r"\b(_?log|fork)$", ast.unparse(node.value))
    }
    assert found == {"runtime/drive.py", "runtime/host.py", "runtime/post.py"}


# The core is pure


def test_the_core_awaits_nothing() -> None:
    waits = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    assert [m.name for m in CORE for node in ast.walk(m.tree) if isinstance(node, waits)] == []


def test_the_core_catches_only_what_it_names() -> None:
    assert [found for module in CORE for found in broad_excepts(module)] == []


# Broad excepts


def broad_excepts(module: Module) -> list[ast.ExceptHandler]:
    return [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or {"Exception", "BaseException"} & set(re.findall(r"\w+", ast.unparse(node.type))))
    ]


def unexplained_excepts(module: Module) -> list[str]:
    """Broad excepts that neither raise again nor say, on their line or the next, why they may not."""
    found: list[str] = []
    for node in broad_excepts(module):
        raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        line, following = module.lines[node.lineno - 1], module.lines[node.lineno].strip()
        explained = re.search(r"#.*\w{4}", line.replace("noqa: BLE001", "")) or following.startswith("#")
        if node.type is None or not (raises or explained):
            found.append(f"{module.name}:{node.lineno}")
    return found


def test_broad_excepts_say_why() -> None:
    assert [found for module in MODULES for found in unexplained_excepts(module)] == []


# Ports

SELF_EXPLAINING = {
    "Store.append_draft",
    "Store.close",
    "Store.find",
    "Store.get",
    "Store.list",
    "Store.load_artifact",
    "Store.read",
    "Store.read_draft",
    "Store.save_artifact",
    "Model.name",
    "Model.stream",
    "Clock.call_later",
    "Clock.monotonic",
    "Clock.now",
    "Engine.start",
    "Timer.cancel",
}
"""Methods whose name and types say it all, or of which the docstring of their port speaks."""


@pytest.mark.parametrize("port", [ports.Store, ports.Model, ports.Engine, ports.Clock, ports.Timer])
def test_every_method_of_a_port_is_documented_or_explains_itself(port: type) -> None:
    assert inspect.getdoc(port) or port is ports.Timer
    for name, member in vars(port).items():
        if name.startswith("_"):
            continue
        function = member.fget if isinstance(member, property) else member
        assert inspect.getdoc(member) or f"{port.__name__}.{name}" in SELF_EXPLAINING, f"{port.__name__}.{name}"
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in list(signature.parameters.values())[1:]:
            assert parameter.annotation is not inspect.Parameter.empty, f"{port.__name__}.{name}({parameter.name})"


def test_the_port_of_stores_speaks_plain_data_only() -> None:
    """What crosses a port can be written down: structs, never objects with behaviour of ours."""
    for struct in (ports.Record, ports.Entry, ports.Opening, ports.Batch, ports.SessionRow, ports.SessionQuery):
        assert struct.__struct_config__.frozen


# The checks themselves


def test_planted_violations_are_found() -> None:
    long_body = "\n".join(f"    x = {number}" for number in range(FUNCTION_LINES))
    planted = Module(
        "planted/utils.py",
        f"""
class SessionManager:
    def handle(self, a, b, c, d, e, f, g, h, i):
        try:
            self.world.store.append(1)
        except Exception:
            pass

def write(store):
{long_body}
    return store.append(Batch())
""",
    )
    assert empty_names(planted) == ["planted/utils.py: utils", "planted/utils.py: SessionManager"]
    assert too_many_parameters(planted) == ["planted/utils.py:handle has 9 parameters"]
    assert too_long_functions(planted) == [f"planted/utils.py:write has {FUNCTION_LINES + 2} lines"]
    assert len(appends_to_a_store(planted)) == 3
    assert len(unexplained_excepts(planted)) == 1
    assert len(_code_lines('"""Doc."""\n\n# words\nx = 1\ny = """a\nb"""\n', ast.parse('x = 1\ny = """a\nb"""\n'))) > 2
