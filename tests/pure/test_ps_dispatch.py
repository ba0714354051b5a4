"""What the coordinator does with workers that are lost, that stand still, and that do something else than it believes."""

import contextlib
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from replicant.coordinator.processes._events import Relay
from replicant.coordinator.processes._health import Health
from replicant.coordinator.processes._member import Member
from replicant.coordinator.scheduling import _dispatch
from replicant.coordinator.scheduling._dispatch import Dispatcher
from replicant.coordinator.wire._channel import Channel
from replicant.coordinator.wire._pulse import Pulse
from replicant.errors import CancelledError, LostProcessError


class Play:
    """A cluster whose workers do what the test says: it reads what they were sent, and answers in their place."""

    def __init__(self, num_workers):
        self.lock, self.keeps_answers, self.closed, self.failure = threading.RLock(), True, False, None
        self.ends, self.ended, self.servers = {}, [], []
        self.workers = [self.start(i, i + 1) for i in range(num_workers)]
        self.relay = Relay()
        self.dispatcher = Dispatcher(self, self.relay, lambda *_: None, None)

    def start(self, index, client):
        here, there = Channel.pair("the coordinator", f"worker {index}")
        self.ends[client] = there
        pulse = Pulse.alone()
        pulse._cells[0] = 1  # a process's
        running = SimpleNamespace(pid=None, pulse=pulse, ended=lambda: None)
        return Member("worker", index, here, running, client=client, ready=True)

    def wake(self):
        self.relay.woken()

    def check(self):
        if self.failure is not None:
            raise self.failure

    def end(self, member, why):
        self.ended.append(f"{member} {why}")

    def sent(self, worker):
        """The closures that a worker has been sent by now, with the attempt."""
        found, end = [], self.ends[worker.client]
        while end.poll():
            message, _ = end.next()
            if message[0] == "run":
                found.append((message[1].closure, message[1].attempt))
        return found

    def lose(self, worker, executing=None):
        """Returns its successor."""
        if executing is not None:
            worker.running.pulse.begin(*executing)
        self.relay.lost(worker, "was killed by SIGKILL")
        worker.control.close()
        self.ends.pop(worker.client).close()
        successor = self.workers[worker.index] = self.start(worker.index, worker.client + 100)
        self.relay.ready(successor)
        return successor

    def answer(self, worker, closure, attempt):
        self.relay.said(worker, ("done", closure, attempt, None, (0.001, 0, 0), None))

    def close(self):
        for worker in self.workers:
            worker.control.close()
        for end in self.ends.values():
            end.close()


@pytest.fixture
def play():
    found = Play(1)
    yield found
    found.close()


def double(x):
    return 2 * x


def schedule(play, count):
    return [play.dispatcher.schedule(double, (i,), {}) for i in range(count)]


def test_a_function_that_kills_its_workers_fails_and_what_waited_behind_it_is_cancelled_as_after_any_error(play):
    first, second = schedule(play, 2)
    worker = play.workers[0]
    for attempt in range(5):
        assert play.sent(worker) == [(0, attempt), (1, attempt)]
        worker = play.lose(worker, (0, attempt))
    assert play.sent(worker) == []
    with pytest.raises(
        LostProcessError, match=r"5 workers were lost while they ran closure 0 \('double'\)\. The last, worker 0, was kil"
    ):
        play.dispatcher.join(60)
    assert (type(first._error), type(second._error)) == (LostProcessError, CancelledError)


def test_a_function_that_was_not_called_is_not_charged(play):
    first, second = schedule(play, 2)
    worker = play.workers[0]
    for attempt in range(4):
        worker = play.lose(worker, (0, attempt))
    worker = play.lose(worker)  # before it called anything
    assert play.sent(worker) == [(0, 5), (1, 5)]
    play.answer(worker, 0, 5)
    for attempt in range(5, 9):  # now the second is called: it was sent to five workers before, and has killed none
        worker = play.lose(worker, (1, attempt))
    play.answer(worker, 1, 9)
    play.dispatcher.join(60)
    assert first._has_ended
    assert second._error is None


def test_workers_that_die_before_they_begin_anything_end_the_cluster_some_time(play):
    schedule(play, 1)
    worker = play.workers[0]
    for _ in range(19):
        worker = play.lose(worker)
    assert play.failure is None
    play.relay.lost(worker, "ended with exit code 1")
    with pytest.raises(LostProcessError, match=r"20 workers in a row were lost before they started any of the closures"):
        play.dispatcher.join(60)


def test_an_answer_of_an_attempt_that_no_longer_counts_is_left_out(play):
    (result,) = schedule(play, 1)
    old = play.workers[0]
    new = play.lose(old, (0, 0))
    play.answer(old, 0, 0)
    assert not result._has_ended
    play.answer(new, 0, 1)
    assert result._has_ended


def test_a_worker_that_is_lost_while_the_coordinator_is_made_is_not_given_anything():
    play = Play(1)
    old, half_way = play.workers[0], threading.Event()
    play.relay = Relay()  # there is no coordinator yet

    def replace():  # as the watching thread does
        with play.lock:
            play.relay.lost(old, "was killed by SIGKILL")
            half_way.set()
            time.sleep(0.1)
            play.workers[0] = play.start(0, 101)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(replace)
        half_way.wait(60)
        play.dispatcher = Dispatcher(play, play.relay, lambda *_: None, None)
        done.result(60)
    schedule(play, 1)
    assert (play.sent(old), play.sent(play.workers[0])) == ([], [(0, 0)])
    old.control.close()
    play.close()


def look(play, seconds):
    for _ in range(seconds):
        play.relay.look(1.0)


NOT_BUSY = "worker 0 should have been running closure 0 (attempt 0) for 61 s, and is running "


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ((0, 0), []),  # what it was sent
        (None, [f"{NOT_BUSY}nothing: a message was lost"]),
        ((1, 0), [f"{NOT_BUSY}closure 1 (attempt 0): a message was lost"]),
        ((0, 1), [f"{NOT_BUSY}closure 0 (attempt 1): a message was lost"]),
    ],
)
def test_a_worker_that_does_not_do_what_it_was_sent_is_ended(play, does, said, monkeypatch):
    monkeypatch.setattr(_dispatch, "_DISAGREE_SECONDS", 60.5)
    schedule(play, 2)
    if does is not None:
        play.workers[0].running.pulse.begin(*does)
    look(play, 61)
    assert play.ended == []
    look(play, 1)
    assert play.ended == said


def test_a_worker_that_does_what_nobody_sent_it_is_ended(play):
    play.workers[0].running.pulse.begin(7, 2)
    look(play, 61)
    assert len(play.ended) == 1
    assert play.ended[0].startswith("worker 0 should have been running nothing for 60 s, and is running closure 7 (attempt 2)")


def test_messages_that_have_yet_to_arrive_are_no_reason(play):
    (result,) = schedule(play, 1)
    for _ in range(3):
        look(play, 50)
        play.workers[0].running.pulse.begin(0, 0)
        look(play, 50)
        play.workers[0].running.pulse.end()
    assert play.ended == []
    assert not result._has_ended


def test_where_nothing_ends_a_warning_says_who_has_what(play, caplog):
    schedule(play, 3)
    play.workers[0].running.pulse.begin(0, 0)
    with caplog.at_level(logging.WARNING, "replicant.coordinator"):
        look(play, 250)
    assert [record.getMessage() for record in caplog.records] == [
        f"No closure has ended for {seconds} s. worker 0 has 'double' (closure 0, attempt 0) and 1 more. Not sent to any worker: 1."
        for seconds in (60, 120, 240)
    ]
    caplog.clear()
    play.answer(play.workers[0], 0, 0)
    play.workers[0].running.pulse.begin(1, 0)
    with caplog.at_level(logging.WARNING, "replicant.coordinator"):
        look(play, 62)
    assert [record.getMessage()[:30] for record in caplog.records] == ["No closure has ended for 60 s."]


def test_joining_with_an_error_waits_no_longer_than_it_was_told(play):
    failing, _ = schedule(play, 2)
    play.relay.said(
        play.workers[0], ("failed", 0, 0, _dispatch.pack_error(ZeroDivisionError("x"), "the worker"), (0.001, 0, 0), None)
    )
    with pytest.raises(ZeroDivisionError):
        play.dispatcher.join(0.01)  # the second runs for ever
    assert failing._has_ended


def health_of(*signs, ended=None):
    """What is said about a process whose (beats, is it ready) are these, looked at once a second."""
    health, pulse = Health(), Pulse.alone()
    running = SimpleNamespace(pid=None, pulse=pulse, ended=lambda: ended)
    said = []
    for second, (beats, ready) in enumerate(signs):
        pulse._cells[0] = beats
        if (why := health.overdue(running, 1.0, ready=ready, start=5.0, heartbeat=3.0)) is not None:
            said.append((second, why))
    return said


@pytest.mark.parametrize(
    ("signs", "said"),
    [
        ([(i, True) for i in range(1, 20)], []),
        ([(1, True)] * 3, []),
        ([(1, True)] * 4, [(3, "had no heartbeat for 3 s")]),
        ([(1, True)] * 3 + [(2, True)] * 3, []),
        ([(0, True)] * 20, []),  # a thread
        ([(0, False)] * 7, [(5, "did not start within 5 s")]),
        ([(i, False) for i in range(1, 8)], [(5, "did not start within 5 s")]),
    ],
)
def test_who_is_to_be_ended(signs, said):
    assert health_of(*signs) == said


def test_a_process_that_has_ended_has_said_everything_when_nothing_more_comes():
    health, running = Health(), SimpleNamespace(pid=None, pulse=Pulse.alone(), ended=lambda: "was killed")
    assert [health.has_ended(running, received, 1.0) for received in (1, 1, 2, 2, 2)] == [False] * 4 + [True]
    assert [Health().has_ended(SimpleNamespace(ended=lambda: "was lost"), 0, 9.0) for _ in range(9)] == [False] * 9  # Ray's says so


def test_many_workers_all_have_something_to_do():
    """Nobody waits for functions of which there could be more: as many are held as the workers need."""
    play = Play(300)
    scheduled = []

    def schedule():
        with contextlib.suppress(LostProcessError):  # at the end of the test
            scheduled.extend(play.dispatcher.schedule(print, (), {}) for _ in range(900))

    thread = threading.Thread(target=schedule)
    thread.start()
    thread.join(20)
    held = [len(play.sent(worker)) for worker in play.workers]
    play.failure = LostProcessError("the test is over")
    with play.dispatcher._changed:
        play.dispatcher._changed.notify_all()
    thread.join()
    play.close()
    assert len(scheduled) == 900
    assert min(held) == 2


def test_who_waits_for_room_goes_on_when_half_of_it_is_free(play):
    done = []

    def schedule():
        for number in range(600):
            play.dispatcher.schedule(print, (), {})
            done.append(number)

    thread = threading.Thread(target=schedule)
    thread.start()
    worker = play.workers[0]
    ended = 0
    while ended < 600:
        for closure, attempt in play.sent(worker):
            if ended == 0:
                time.sleep(0.2)
                assert len(done) == 512  # and no more, while none has ended
            ended += 1
            play.answer(worker, closure, attempt)
    thread.join()
    assert len(done) == 600
