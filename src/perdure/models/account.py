"""An account: where a model is served and with which key. The key is read when a request leaves, and never shown."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from hashlib import sha256
from urllib.parse import unquote, urlsplit

from perdure.core.errors import ModelError
from perdure.models.http_route import take_user

HIDDEN = "[key]"
_WORD = re.compile(r"[^\s\"'<>(){}\[\],;=]{4,}")
_KEY_LIKE = re.compile(r"\*{3,}|^(sk|pk|rk|gsk|xai|hf|nvapi)[-_].{8,}|^AIza.{8,}", re.IGNORECASE)
_SHORTENED = re.compile(r"\.{3,}|…")
_SHARED = 8
"""So many characters in a row that a word has in common with the key make it a piece of the key."""


class Account:
    """`variables` name the key in the environment, `url_variable` the address; what is passed in goes first."""

    __slots__ = ("_api_key", "_base_url", "_default_url", "_needs_key", "_quota", "_url_variable", "_variables")

    def __init__(
        self,
        default_url: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        variables: tuple[str, ...] = (),
        url_variable: str = "",
        needs_key: bool = True,
    ) -> None:
        self._default_url = default_url
        self._base_url = base_url
        self._api_key = api_key
        self._variables = variables
        self._url_variable = url_variable
        self._needs_key = needs_key
        self._quota: tuple[tuple[str, str, str], str] | None = None

    def __repr__(self) -> str:
        return f"Account({shown_url(self.base_url)!r})"

    @property
    def base_url(self) -> str:
        if self._base_url:
            return self._base_url.rstrip("/")
        named = os.environ.get(self._url_variable) if self._url_variable else None
        return (named or self._default_url).rstrip("/")

    def key(self, known: str | None = None) -> str:
        """The key, fit for a header; empty where none is needed. One that is `known` was looked at before."""
        key = self._find_key()
        if key == known:
            return key
        if not key and self._needs_key:
            wanted = " or ".join(self._variables) or "api_key"
            raise ModelError(f"There is no key for this model; set {wanted} or pass api_key.", kind="auth")
        if not key.isprintable() or not _is_latin(key):
            raise ModelError("The key has characters that no key has, such as a line break; set it again.", kind="auth")
        return key

    def quota(self, model: str) -> str:
        """The same for all that share this key, address and model; nothing can be read from it."""
        shared = (self._find_key(), self.base_url, model)
        if self._quota is None or self._quota[0] != shared:
            self._quota = shared, sha256("\n".join(shared).encode("utf-8", "replace")).hexdigest()[:32]
        return self._quota[1]

    def scrub(self, text: str) -> str:
        """The text without the key, pieces of it, and words that look like a key: providers echo what they refuse."""
        key, password = self._find_key(), _password_of(self.base_url)
        basic = take_user(self.base_url)[1].removeprefix("Basic ")
        # What is sent is also echoed as it was sent: the password in words, and both of them in base64.
        forms = (key, b64encode(key.encode("utf-8", "replace")).decode(), password, unquote(password), basic)
        secrets = [secret for secret in dict.fromkeys(forms) if secret]
        for secret in secrets:
            # A short one may be a part of any word.
            pattern = re.escape(secret) if len(secret) >= _SHARED else rf"(?<!\w){re.escape(secret)}(?!\w)"
            text = re.sub(pattern, HIDDEN, text)
        return _WORD.sub(lambda word: HIDDEN if _gives_away(word[0], secrets) else word[0], text)

    def _find_key(self) -> str:
        found = self._api_key or ""
        for name in self._variables if not found else ():
            found = found or os.environ.get(name, "")
        # A key that was pasted into a file or a variable often ends with a line end.
        return found.strip()


def shown_url(url: str) -> str:
    """The URL without what may be secret in it: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def _password_of(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""


def _is_latin(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


def _gives_away(word: str, secrets: list[str]) -> bool:
    if word == HIDDEN:
        return False
    if _KEY_LIKE.search(word):
        return True
    if _SHORTENED.search(word) and any(word.startswith(secret[:3]) or secret[-3:] in word for secret in secrets):
        return True
    return any(secret[at : at + _SHARED] in word for secret in secrets for at in range(len(secret) - _SHARED + 1))
