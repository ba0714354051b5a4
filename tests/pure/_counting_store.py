"""A key-value store in memory that counts requests by kind, and fails on demand."""

import collections
import threading
import time


class CountingStore:
    """The store that all workers share. `of(rank)` is one worker's connection to it."""

    def __init__(self):
        self.texts, self.changed = {}, threading.Condition()
        self.requests = collections.Counter()  # by rank and kind
        self.fail = lambda rank, kind, key: None  # may return "before" to lose the request, or "after" to lose its answer

    def of(self, rank):
        return Connection(self, rank)

    def num_requests(self, rank):
        return sum(count for (whose, _), count in self.requests.items() if whose == rank)


class Connection:
    def __init__(self, store, rank):
        self.store, self.rank = store, rank

    def _call(self, kind, key, change):
        with self.store.changed:
            self.store.requests[self.rank, kind] += 1
            lost = self.store.fail(self.rank, kind, key)
            if lost == "before":
                raise ConnectionError("the request was lost")
            answer = change(self.store.texts)
            self.store.changed.notify_all()
            if lost == "after":
                raise TimeoutError("the answer was lost")
            return answer

    def put(self, key, text, *, overwrite=False):
        self._call("put", key, lambda texts: texts.__setitem__(key, text))

    def list(self, prefix):
        return self._call("list", prefix, lambda texts: {k: texts[k] for k in list(texts) if k.startswith(prefix)})

    def increment(self, key):
        def count(texts):
            texts[key] = str(int(texts.get(key, "0")) + 1)
            return int(texts[key])

        return self._call("increment", key, count)

    def delete(self, key):
        def forget(texts):
            for each in [k for k in texts if k == key or k.startswith(f"{key}/")]:
                del texts[each]

        self._call("delete", key, forget)

    def get(self, key, timeout_seconds):
        deadline = time.monotonic() + timeout_seconds
        self._call("get", key, lambda texts: None)
        with self.store.changed:
            if not self.store.changed.wait_for(lambda: key in self.store.texts, deadline - time.monotonic()):
                raise TimeoutError(key)
            return self.store.texts[key]

    def close(self):
        """Do nothing."""
