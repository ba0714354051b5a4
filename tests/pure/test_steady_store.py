"""A store that fails for a while: what is tried again, what is remembered of it, and when it counts as lost."""

import math

import pytest

from replicant.cluster.exchange._steady_store import SteadyStore


class Failing:
    """A store whose calls end as they are told, one after the other; after that, they are answered."""

    def __init__(self, *ends):
        self.ends, self.calls = list(ends), []

    def _call(self, *call):
        self.calls.append(call)
        end = self.ends.pop(0) if self.ends else None
        if end is not None:
            raise end
        return "text"

    def put(self, key, text, *, overwrite=False):
        self._call("put", key, text, overwrite)

    def get(self, key, timeout_seconds):
        return self._call("get", key)

    def list(self, prefix):
        self._call("list", prefix)
        return {f"{prefix}1": "one"}

    def increment(self, key):
        self._call("increment", key)
        return 7

    def delete(self, key):
        self._call("delete", key)


def steady(*ends, patience=60.0):
    store = Failing(*ends)
    return store, SteadyStore(store, "replicant/3", patience)


def test_what_must_be_stored_or_read_is_tried_again():
    store, own = steady(TimeoutError("late"), ConnectionError("reset"))
    own.put("a", "text")
    assert store.calls == [("put", "replicant/3/a", "text", True)] * 3
    assert (own.trouble, own.fails_for(), own.is_lost) == ("", 0.0, False)
    store, own = steady(ConnectionError("reset"))
    assert own.read("a") == "text"
    assert store.calls == [("get", "replicant/3/a")] * 2


@pytest.mark.parametrize("error", [TimeoutError("late"), ConnectionError("reset")])
def test_a_call_that_may_fail_is_not_tried_again_and_noted(error):
    for call, failed, answered in (
        (lambda own: own.try_put("a", "text"), False, True),
        (lambda own: own.list("a/"), None, {"1": "one"}),
        (lambda own: own.increment("a"), None, 7),
        (lambda own: own.delete("a"), None, None),
    ):
        store, own = steady(error)
        assert call(own) == failed
        assert (len(store.calls), own.trouble, own.fails_for() > 0) == (1, str(error), True)
        assert call(own) == answered
        assert (own.trouble, own.fails_for()) == ("", 0.0)


def test_a_text_that_is_not_there_in_time_says_nothing_about_the_store():
    """The store may be gone, or only nobody has put it there."""
    _, own = steady(TimeoutError("not there"), ConnectionError("reset"), TimeoutError("not there"))
    assert own.get("a", 1.0) is None
    assert own.trouble == ""
    assert own.get("a", 1.0) is None
    assert own.get("a", 1.0) is None
    assert own.trouble == "reset"
    assert own.get("a", 1.0) == "text"


def test_a_store_that_fails_for_too_long_is_lost():
    store, own = steady(*[ConnectionError("reset")] * 9, patience=0.0)
    for call in (lambda: own.put("a", "text"), lambda: own.read("a"), lambda: own.get("a", 1.0)):
        with pytest.raises(ConnectionError, match=r"^reset$"):
            call()
    assert (len(store.calls), own.is_lost) == (3, True)


def test_a_store_that_this_process_has_left_is_not_asked_again():
    store, own = steady(ConnectionAbortedError("this process has left"))
    with pytest.raises(ConnectionAbortedError, match=r"^this process has left$"):
        own.put("a", "text")
    assert len(store.calls) == 1


def test_a_store_that_is_gone_stays_gone():
    _, own = steady(ConnectionResetError("the launcher has ended"))
    assert not own.try_put("a", "text")
    assert own.try_put("a", "text")
    assert (own.is_gone, own.trouble, own.fails_for(), own.is_lost) == (True, "the launcher has ended", math.inf, True)
