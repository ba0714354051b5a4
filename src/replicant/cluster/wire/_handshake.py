"""How two ends of a connection prove to each other that they know a key.

Whoever listens says a number that it has drawn. The other end answers with a number of its own, and with a proof over both. Then
the listener proves the same. So what was said on one connection is of no use on another. Nothing here trusts a message.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

_NONCE = re.compile(r"[0-9A-Za-z]{1,64}")


def draw_nonce() -> str:
    """Return a new random number."""
    return secrets.token_hex(16)


def nonce_of(message: Mapping[str, Any]) -> str:
    """The number that a message names; empty if it names none.

    >>> nonce_of({"nonce": "5f"}), nonce_of({"nonce": 5}), nonce_of({"nonce": "a:b"}), nonce_of({})
    ('5f', '', '', '')
    """
    said = message.get("nonce")
    return said if isinstance(said, str) and _NONCE.fullmatch(said) else ""


def proof(key: str, side: str, first: str, second: str, what: object = None) -> str:
    """A proof that its sender knows the key.

    Args:
        key: The key.
        side: Who proves it. So one side's proof cannot be sent back as the other's.
        first: The number of the one end.
        second: The number of the other end.
        what: What the sender says besides, as JSON can hold it.

    >>> proof("key", "worker", "1", "2") == proof("key", "supervisor", "1", "2")
    False
    """
    text = f"{side}:{first}:{second}"
    if what is not None:
        text += ":" + json.dumps(what, sort_keys=True)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def is_proved(message: Mapping[str, Any], expected: str) -> bool:
    """Whether a message has the expected proof. The time that this takes does not reveal how much of it was right.

    >>> [is_proved(message, "p") for message in ({"proof": "p"}, {"proof": ["p"]}, {"proof": "q"}, {})]
    [True, False, False, False]
    """
    said = message.get("proof")
    return isinstance(said, str) and said.isascii() and hmac.compare_digest(said, expected)
