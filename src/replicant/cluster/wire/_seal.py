"""Seals on what workers say about themselves in JAX's key-value store, to which anybody can write who reaches its port.

A seal is made with a secret that only the workers of the job have: from their launcher, REPLICANT_JOB_KEY, or the roll call.
"""

import hashlib
import hmac
import secrets

_LENGTH = 32  # characters of a seal
NONE = ""


def draw() -> str:
    """Return a new secret."""
    return secrets.token_hex(16)


def of_key(key: str, run: str = "") -> str:
    """Return the secret that follows from a job's key and, if the key serves several runs, from what was drawn for this one.

    >>> of_key("k", "1") == of_key("k", "2"), of_key("", "1") == NONE
    (False, True)
    """
    return _code(key, f"seal{run}") if key else NONE


def close(secret: str, key: str, text: str) -> str:
    """Return a text with a seal for one place in the store; without a secret, as it is.

    >>> open_("s", "fate/failed/1", close("s", "fate/failed/1", "text"))
    'text'
    """
    return f"{_code(secret, f'{key}:{text}')}{text}" if secret else text


def open_(secret: str, key: str, sealed: str) -> str | None:
    """Return the text, or None if it has no seal of this job for this place in the store.

    >>> open_("s", "fate/failed/1", "text"), open_("s", "fate/failed/1", close("s", "fate/failed/2", "text"))
    (None, None)
    """
    if not secret:
        return sealed
    text = sealed[_LENGTH:]
    said = sealed[:_LENGTH].encode(errors="surrogatepass")
    return text if hmac.compare_digest(said, _code(secret, f"{key}:{text}").encode()) else None


def _code(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:_LENGTH]
