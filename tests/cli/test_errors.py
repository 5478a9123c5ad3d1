"""Wrong words, wrong ids, wrong files, a closed pipe: the right exit code, one sentence that says what to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import apsw

from tests.cli.command import AGENTS, PERDURE, TIMEOUT, Command, agent

LOOKING = (
    "sessions list",
    "sessions show s",
    "sessions records s",
    "sessions audit s",
    "sessions fork s",
    "sessions delete s",
    "inputs list s",
    "inputs retract s 1",
    "pending",
    "decide x-1-1 approve",
    "stop s",
    "cancel s",
    f"resume s --agent {AGENTS}:greeter",
)
DRIVING = (f"run hello --agent {AGENTS}:greeter", f"chat --agent {AGENTS}:greeter")

WRONG_WORDS = {
    "run": "Missing argument 'PROMPT'; see perdure run --help.",
    "frob": "No such command 'frob'; see perdure --help.",
    "run hello --frob": "No such option: --frob",
    "run hello --model nobody:x": "Nobody provides the model 'nobody:x';",
    "run hello --model scripted:none.json": "The script none.json cannot be read (No such file or directory);",
    "run hello --agent agents.py": "--agent 'agents.py': write it as FILE.py:NAME, for example agents.py:clerk.",
    "run hello --agent none.py:clerk": "--agent: there is no file 'none.py'; check the path.",
    "run hello --agent raises.py:clerk": "--agent: raises.py cannot be loaded (ValueError: out of order, line 2);",
    "run hello --agent exits.py:clerk": "--agent: exits.py cannot be loaded (SystemExit: 7, line 1); mend it",
    "run hello --agent broken.py:clerk": "--agent: broken.py cannot be loaded (SyntaxError:",
    "run hello --agent empty.py:clerk": "--agent: empty.py has no Agent named 'clerk'; define clerk = Agent(…)",
    f"run hello --agent {AGENTS}:clerc": f"--agent: {AGENTS} has no Agent named 'clerc'; it has clerk, greeter,",
    "run hello --store mysql:x --agent agents.py": "--agent 'agents.py'",
    "sessions list --store mysql:x": "'mysql:x' names no store;",
    "sessions list --status gone": "--status gone: take one of idle, running, waiting.",
    "sessions list --limit 0": "Invalid value for '--limit'",
    "inputs retract s two": "Invalid value for 'NUMBER'",
    "inputs edit s 2": "Missing argument 'TEXT'; see perdure inputs edit --help.",
    "bench --turns none": "Invalid value for '--turns'",
    "decide x frob": "'frob' is no decision; take one of approve, deny, edit, answer, retry.",
    "decide x edit": "edit needs the other arguments; give them with --arguments '{…}'.",
    "decide x answer": "answer needs the result; give it behind the word answer.",
    "decide x edit --arguments {": "The arguments are no JSON (",
    "decide x edit --arguments [1]": "The arguments have to be one JSON object;",
}

WRONG_IDS = {
    "sessions show nope": "There is no session 'nope'; perdure sessions list shows which there are.",
    "sessions delete nope": "There is no session 'nope';",
    "sessions show s --tenant other": "There is no session 's' of tenant 'other';",
    "sessions fork s --at 99": "Session 's' has records 1 to 7; it cannot be forked at 99.",
    "sessions fork s --id s": "There is a session 's' already; take another --id.",
    "sessions records nope": "There is no session 'nope';",
    "sessions audit nope": "There is no session 'nope';",
    "sessions fork nope": "There is no session 'nope';",
    "inputs list nope": "There is no session 'nope';",
    "inputs edit nope 1 x": "There is no session 'nope';",
    "inputs edit s 9 x": "No input 9 waits for session 's'; perdure inputs list s shows which do.",
    "inputs retract s 1": "Input 1 was taken by run 1 already; stop that run, or send another input.",
    "cancel nope": "There is no session 'nope';",
    "stop nope": "There is no session 'nope';",
    "stop s": "Session 's' has no open run, so there is nothing to stop.",
    "decide nope approve": "Nothing pending has the id 'nope'; perdure pending shows what waits.",
    "resume nope": "There is no session 'nope';",
    "resume s": "Session 's' belongs to the agent 'greeter'; give its code with --agent FILE.py:NAME.",
    f"resume s --agent {AGENTS}:clerk": "Session 's' belongs to the agent 'greeter', not to 'clerk'.",
    f"resume s --agent {AGENTS}:greeter": "Session 's' has nothing to resume: its last run is completed;",
    f"run hello --session s --agent {AGENTS}:clerk": "Session 's' belongs to the agent 'greeter';",
}


def check(perdure: Command, sentences: dict[str, str]) -> None:
    """Each command ends with 2, says its one sentence and nothing else."""
    commands = [words.split() for words in sentences]
    for words, sentence, done in zip(sentences, sentences.values(), perdure.many(commands), strict=True):
        code, shown, said = done
        assert (code, shown) == (2, ""), (words, done)
        assert said.count("\n") == 1, words
        assert said.startswith(f"perdure: {sentence}"), words


def refused(perdure: Command, *arguments: str) -> str:
    """The one sentence."""
    done = perdure.call(*arguments, code=2)
    assert done.stdout == ""
    (sentence,) = done.stderr.splitlines()
    return sentence.removeprefix("perdure: ")


def test_wrong_words(perdure: Command) -> None:
    (perdure.folder / "raises.py").write_text("\nraise ValueError('out of\\norder')\n")
    (perdure.folder / "exits.py").write_text("raise SystemExit(7)\n")
    (perdure.folder / "broken.py").write_text("def clerk(:\n")
    (perdure.folder / "empty.py").touch()
    check(perdure, WRONG_WORDS)
    assert not list(perdure.folder.glob("data/**/*.db")), "nothing was made"


def test_an_empty_prompt(perdure: Command) -> None:
    assert refused(perdure, "run", " ", *agent("greeter")) == "The prompt is empty; say what the agent shall do."


def test_wrong_ids(perdure: Command) -> None:
    perdure("run", "hello", *agent("greeter"), "--session", "s")
    check(perdure, WRONG_IDS)
    assert len(perdure.objects("sessions", "records", "s")) == 7, "nothing was changed"


def test_a_decision_that_does_not_fit(perdure: Command) -> None:
    perdure("run", "Bill", *agent("clerk"), "--session", "s", code=3)
    (item,) = perdure.objects("pending")
    said = refused(perdure, "decide", item["id"], "retry")
    assert said == "approval takes approve or deny or edit or answer, not retry."
    assert perdure.objects("pending") == [item]


def test_no_store_to_look_into(perdure: Command) -> None:
    there = f"There is no store at {perdure.folder}/data/perdure/perdure.db; start with `perdure run`"
    check(perdure, dict.fromkeys(LOOKING, there))
    check(perdure, {"sessions list --store sqlite:x.db": "There is no store at x.db;"})
    assert not list(perdure.folder.glob("**/*.db")), "looking makes no store"


def stores(folder: Path) -> dict[str, str]:
    """Stores that cannot be opened, each with its sentence."""
    (folder / "junk.db").write_text("this is not a database, whatever its name says")
    other = apsw.Connection(str(folder / "other.db"))
    other.execute("CREATE TABLE invoices (cents)")
    other.close()
    (folder / "folder.db").mkdir()
    newer = apsw.Connection(str(folder / "data" / "perdure" / "perdure.db"))
    newer.pragma("user_version", 99)
    newer.close()
    sentences = {
        "junk.db": "is not a SQLite database; give the path of a new file.",
        "other.db": "is another program's database; give the path of a new file.",
        "folder.db": "is a folder; give the path of a file in it.",
        "data/perdure/perdure.db": "was written by a newer version of Perdure (schema 99,",
    }
    if os.geteuid() != 0:
        (folder / "locked.db").touch(mode=0o000)
        sentences["locked.db"] = "cannot be opened; check that it and its folder can be read and written."
    return sentences


def test_a_store_that_cannot_be_opened(perdure: Command) -> None:
    perdure("run", "hello", *agent("greeter"), "--session", "s")
    sentences = stores(perdure.folder)
    files = {path: path.read_bytes() for path in map(perdure.folder.joinpath, sentences) if path.is_file()}
    for name, sentence in sentences.items():
        commands = (f"{words} --store sqlite:{name}" for words in (*LOOKING, *DRIVING))
        check(perdure, dict.fromkeys(commands, f"'{perdure.folder / name}' {sentence}"))
    assert files == {path: path.read_bytes() for path in files}, "what is not ours is not changed"
    assert "newer version of Perdure" in perdure("doctor", code=1)


def test_a_folder_that_cannot_be_made(perdure: Command) -> None:
    (perdure.folder / "data").touch()
    sentence = refused(perdure, "run", "hello", *agent("greeter"))
    assert sentence.endswith("name a store with --store sqlite:PATH.")


def test_debug_shows_the_traceback(perdure: Command) -> None:
    for words in (("sessions", "show", "nope", "--debug"), ("--debug", "sessions", "show", "nope")):
        done = subprocess.run([PERDURE, *words], env=perdure.env, capture_output=True, text=True, timeout=TIMEOUT)
        assert done.returncode == 2
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("perdure: There is no store at")


def test_a_closed_pipe_is_quiet(perdure: Command) -> None:
    perdure("run", "hello", *agent("greeter"), "--session", "s")
    for words in (("sessions", "records", "s"), ("sessions", "show", "s"), ("sessions", "list"), ("doctor",)):
        assert pipe_to_nobody(perdure, *words) == (0, "")


def test_a_run_goes_on_when_its_reader_has_gone(perdure: Command) -> None:
    """And the exit code tells how it went."""
    assert pipe_to_nobody(perdure, "run", "Bill", *agent("clerk"), "--session", "a", "--yes") == (0, "")
    assert pipe_to_nobody(perdure, "run", "Bill", *agent("clerk"), "--session", "b") == (3, "")
    assert pipe_to_nobody(perdure, "run", "hello", *agent("broken"), "--session", "x") == (1, "")
    code, said = pipe_to_nobody(perdure, "run", "Bill", *agent("clerk"), "--session", "c", "--yes", "--json")
    assert (code, said) == (0, "a tool prints\n")
    assert [row["status"] for row in perdure.objects("sessions", "list")] == ["idle", "idle", "waiting", "idle"]


def pipe_to_nobody(perdure: Command, *words: str) -> tuple[int, str]:
    """The reader is gone before the first line: `perdure … | head -0`."""
    read, write = os.pipe()
    os.close(read)
    started = perdure.start(*words, stdout=write)
    os.close(write)
    _, said = started.communicate(timeout=TIMEOUT)
    return started.returncode, said
