"""The account of a job's time, from the events of its run log; its text, its page, and logs that are none."""

import io
import json
import tracemalloc
from html.parser import HTMLParser

import pytest

import replicant
from replicant.cli import main
from replicant.errors import ArgumentError, ArgumentTypeError
from replicant.launch.record._events import MAX_LINE, Events
from replicant.launch.record._goodput import COUNTED, DOWN, REPEATED, STARTING, Span, coarse, read_job
from replicant.launch.record._progress import Progress
from replicant.launch.record._run_log import RunLog
from replicant.launch.show._report_page import page_of
from replicant.launch.show._report_text import text_of


def account(events):
    return read_job(events)[0]


def event(t, kind, **facts):
    return {"t": 1000.0 + t, "kind": kind, **facts}


def start(t, rank, generation=0):
    return event(t, "start", rank=rank, generation=generation, pid=10 + rank)


def steps(t, **workers):
    return event(t, "steps", workers={rank.removeprefix("r"): each for rank, each in workers.items()})


JOB = event(0, "job", command=["python", "train.py"], workers=2, elastic=None, host="a", pid=1, python="3.13")
BEGUN = [JOB, start(0, 0), start(0, 1), event(2, "came", rank=0, host="a"), event(2, "came", rank=1, host="b")]

UNDISTURBED = [
    *BEGUN,
    steps(10, r0=[1, 0.0, "step"], r1=[1, 0.0, "step"]),
    event(20.5, "saved", rank=0, step=11, seconds=0.5, path="run/1"),
    steps(30, r0=[21, 10.0, "step"], r1=[21, 2.0, "step"]),
    event(40, "ended", rank=0, code=0),
    event(40, "ended", rank=1, code=0),
    event(40, "done", code=0),
]

# Steps 12 to 16 are run twice: the worker fails at second 26, after the checkpoint of second 20.
KILLED = [
    *BEGUN,
    steps(10, r0=[1, 0.0, "step"], r1=[1, 0.0, "step"]),
    event(20.5, "saved", rank=0, step=11, seconds=0.5, path="run/1"),
    steps(26, r0=[16, 0.0, "step"], r1=[16, 0.0, "step"]),
    event(26, "ended", rank=1, code=-9),
    event(26, "failed", rank=1, what="was ended by SIGKILL", step=16, cause="signal"),
    event(27, "failed", rank=0, what="could not go on without another worker: ...", step=16, cause="lost"),
    event(27, "ended", rank=0, code=1),
    event(27, "decided", text="..."),
    start(29, 0, 1),
    start(29, 1, 1),
    event(31, "came", rank=0, host="a"),
    event(31, "came", rank=1, host="c"),
    steps(34, r0=[1, 0.0, "step"], r1=[1, 0.0, "step"]),
    steps(44, r0=[10, 0.0, "step"], r1=[10, 0.0, "step"]),
    event(44, "ended", rank=0, code=0),
    event(44, "ended", rank=1, code=0),
    event(44, "done", code=0),
]

# Worker 0 goes on alone at second 21, and together with the new worker 1 at second 30.
ELASTIC = [
    *BEGUN,
    steps(10, r0=[1, 0.0, "step"], r1=[1, 0.0, "step"]),
    event(15, "saved", rank=0, step=6, seconds=0.0, path="run/1"),
    steps(20, r0=[11, 0.0, "step"], r1=[11, 0.0, "step"]),
    event(20, "failed", rank=1, what="was ended by SIGKILL", step=11, cause="signal"),
    event(20, "ended", rank=1, code=-9),
    event(21, "formed", generation=1, members=[0]),
    start(21, 1, 1),
    steps(22, r0=[12, 0.0, "step"]),
    event(27, "saved", rank=0, step=17, seconds=0.0, path="run/2"),
    steps(30, r0=[20, 0.0, "step"]),
    event(30, "came", rank=1, host="c"),
    event(30, "formed", generation=2, members=[0, 1]),
    steps(32, r0=[21, 0.0, "step"], r1=[1, 0.0, "step"]),
    steps(40, r0=[29, 0.0, "step"], r1=[9, 0.0, "step"]),
    event(40, "done", code=0),
]


def lines(events):
    return [json.dumps(each) + "\n" for each in events]


@pytest.mark.parametrize(
    ("events", "counted", "starting", "repeated", "down", "steps_of", "losses"),
    [
        (UNDISTURBED, 30, 10, 0, 0, [(21, 21)], []),
        # The failure costs 6 s of steps, 3 s without workers, and 5 s until the next step.
        (KILLED, 20, 15, 6, 3, [(11, 16), (10, 10)], [("rank 1 was ended by SIGKILL", 14)]),
        (
            ELASTIC,
            5 + 5 + 8,
            10 + 1 + 2,
            5 + 3,
            1,
            [(6, 11), (6, 9), (9, 9)],
            [("rank 1 was ended by SIGKILL", 7), ("the group of workers changed", 5)],
        ),
        (KILLED[:6], 0, 10, 0, 0, [(1, 1)], []),
        (KILLED[:10], 10, 10, 6, 0, [(11, 16)], [("rank 1 was ended by SIGKILL", 6)]),
        (BEGUN, 0, 2, 0, 0, [(0, 0)], []),
        ([JOB], 0, 0, 0, 0, [], []),
        ([JOB, event(5, "done", code=2)], 0, 0, 0, 5, [], []),
    ],
)
def test_where_the_time_went(  # noqa: PLR0917
    events, counted, starting, repeated, down, steps_of, losses
):
    job = account(events)
    assert job.seconds == {COUNTED: counted, STARTING: starting, REPEATED: repeated, DOWN: down}
    assert sum(job.seconds.values()) == job.stop - job.start
    assert [(period.counted_steps, period.steps) for period in job.periods] == steps_of
    assert job.losses == losses


def test_what_each_worker_did():
    workers = account(UNDISTURBED).workers
    assert [(each.steps, each.stepping, each.waited, each.own_seconds) for each in workers.values()] == [
        (21, 20.0, 10.0, 10 / 21),
        (21, 20.0, 2.0, 18 / 21),
    ]
    killed = account(KILLED).workers
    assert [(each.processes, each.hosts, each.steps) for each in killed.values()] == [(2, ["a"], 26), (2, ["b", "c"], 26)]
    assert [(span.start - 1000, span.stop - 1000) for span in killed[1].ran] == [(0, 26), (29, 44)]
    assert killed[1].failures == [(1026.0, "was ended by SIGKILL")]


TEXT = """\
python train.py
ended well; 44.0 s, 2 group(s) of workers, 1 checkpoint(s)
goodput 45.5%: 21 of 26 steps counted

  # steps that counted               20.0 s  45.5%
  . starting                         15.0 s  34.1%
  ~ steps that were run again         6.0 s  13.6%
    without workers                   3.0 s   6.8%
"""


def test_the_text():
    job = account(KILLED)
    assert text_of(job, 54).startswith(TEXT)
    assert "lost, with the time until the next step:\n        14.0 s  rank 1 was ended by SIGKILL\n" in text_of(job, 54)
    (zero,) = [line for line in text_of(job, 54).splitlines() if line.startswith("rank 0")]
    assert zero == "rank 0    " + "." * 10 + "#" * 10 + "~" * 6 + " x " + "." * 5 + "#" * 10
    (one,) = [line for line in text_of(job, 54).splitlines() if line.startswith("rank 1")]
    assert one == "rank 1    " + "." * 10 + "#" * 10 + "~" * 6 + "x" + "  " + "." * 5 + "#" * 10
    for width in (1, 20, 1000):
        assert text_of(account([JOB]), width).startswith("python train.py\nno end yet: it runs, or its launcher was killed; 0.0 s")


def test_a_slow_worker_is_marked():
    events = [*UNDISTURBED[:7], steps(30, r0=[21, 15.0, "step"], r1=[21, 2.0, "step"]), *UNDISTURBED[8:]]
    rows = text_of(account(events)).splitlines()[-2:]
    assert not rows[0].endswith("slow")
    assert rows[1].endswith("slow")


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.counts, self.text = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_a_terminal_obeys_no_name_in_a_log():
    job = account([event(0, "job", command=["a\x1b[2J\n\x9bb"]), *KILLED[1:]])
    job.workers[1].hosts.append("evil\r\x1b]0;title\x07")
    text = text_of(job)
    assert all(each.isprintable() or each == "\n" for each in text)
    assert text.startswith("a\ufffd[2J\ufffd\ufffdb\n")


def test_the_page_is_whole_and_shows_texts_as_they_are():
    job = account([event(0, "job", command=["<script>alert(1)</script>"]), *KILLED[1:]])
    job.workers[1].failures.append((1030.0, "failed: a <b> & 'c'"))
    tags = Tags()
    tags.feed(page_of(job))
    assert tags.open == []
    assert "script" not in tags.counts
    assert tags.counts["rect"] == 5 + 6  # rank 0 also ran for a second after the failure
    assert "<script>alert(1)</script>" in tags.text
    assert "rank 1 failed: a <b> & 'c', after 30.0 s" in tags.text
    assert page_of(account([JOB]))


def read(text):
    events = Events(io.StringIO(text))
    return list(events), events.damaged, events.first_damaged


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[1]",
        "1e999",
        "[" * 100_000,
        '{"kind": "done", "t": "now"}',
        '{"kind": "done", "t": NaN, "code": 0}',
        '{"kind": "done", "t": 1e300, "code": 0}',
        '{"kind": "done", "t": true, "code": 0}',
        '{"kind": "done", "t": 1}',
        '{"kind": 3, "t": 1}',
        '{"kind": "start", "t": 1, "rank": -1, "generation": 0}',
        '{"kind": "start", "t": 1, "rank": 1e9, "generation": 0}',
        '{"kind": "start", "t": 1, "rank": 99999, "generation": 0}',
        '{"kind": "start", "t": 1, "rank": 0}',
        '{"kind": "came", "t": 1, "rank": 0, "host": ["a"]}',
        '{"kind": "steps", "t": 1, "workers": [1]}',
        '{"kind": "steps", "t": 1, "workers": {"x": [1, 0.0, "step"]}}',
        '{"kind": "steps", "t": 1, "workers": {"\u0663": [1, 0.0, "step"]}}',
        '{"kind": "steps", "t": 1, "workers": {"0": [1, Infinity, "step"]}}',
        '{"kind": "steps", "t": 1, "workers": {"0": [1e400, 0.0, "step"]}}',
        f'{{"kind": "steps", "t": 1, "workers": {{"0": [{"9" * 400}, 0.0, "step"]}}}}',
        '{"kind": "saved", "t": 1, "rank": 0, "step": "ten"}',
        '{"kind": "failed", "t": 1, "rank": -2, "what": ""}',
        '{"kind": "job", "t": 1, "command": "rm"}',
        '{"kind": "done", "t": 1, "code": 0, "more": "' + "x" * MAX_LINE + '"}',
        '{"kind": "job", "t": 1, "comm{"kind": "job", "t": 2}',
        b"\xff\xfe\x00".decode("utf-8", "replace"),
    ],
    ids=range(27),
)
def test_a_damaged_line_is_counted_and_left_out(line):
    before, after = lines(KILLED[:5]), lines(KILLED[5:])
    assert read("".join([*before, line + "\n", *after])) == (KILLED, 1, 6)


def test_a_last_line_that_is_cut_off_is_left_out():
    assert read("".join(lines(KILLED)) + '{"t": 12, "ki') == (KILLED, 0, None)


def test_a_long_log_needs_little_memory(tmp_path):
    path = tmp_path / "run.jsonl"
    workers = {str(rank): [1, 0.0, "step"] for rank in range(64)}
    with path.open("w") as file:
        file.writelines(lines(BEGUN))
        for i in range(500):
            file.write(json.dumps(steps(i + 10) | {"workers": {rank: [i, 0.0, "step"] for rank in workers}}) + "\n")
    with path.open() as file:
        tracemalloc.start()
        job, _ = read_job(Events(file))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert job.periods[0].steps == 499
    assert peak < 200_000 < path.stat().st_size


def test_two_jobs_at_the_same_time_in_one_folder():
    one = [each | {"job": "1"} for each in UNDISTURBED]
    two = [each | {"job": "2"} for each in KILLED]
    mixed = sorted([*one, *two], key=lambda each: each["t"])
    for number, events in ((1, UNDISTURBED), (2, KILLED), (None, KILLED)):
        job, count = read_job(mixed, number)
        assert (job.seconds, job.losses, count) == (account(events).seconds, account(events).losses, 2)
    assert read_job(mixed, 3) == (None, 2)


def test_logs_without_names_of_jobs_follow_each_other():
    assert read_job([*UNDISTURBED, *KILLED, *ELASTIC], 2)[0].seconds == account(KILLED).seconds
    assert read_job([*UNDISTURBED, *KILLED, *ELASTIC], 2)[1] == 3


def test_a_clock_that_is_set_back_stands_still():
    later = [each | {"t": each["t"] - 3600} if i > 6 else each for i, each in enumerate(UNDISTURBED)]
    job = account(later)
    assert job.went_back == 1
    assert all(span.seconds >= 0 for span in job.spans)
    assert sum(job.seconds.values()) == job.stop - job.start == 20.5
    assert text_of(job)
    assert page_of(job)


def test_what_is_too_short_to_be_seen_is_joined():
    spans = [Span("ab"[i % 2], i / 1000, (i + 1) / 1000) for i in range(1000)]
    joined = coarse(spans, 0.1)
    assert len(joined) == 10
    assert (joined[0].start, joined[-1].stop) == (0, 1)


def test_ten_thousand_failures_of_a_thousand_workers_make_a_page_that_a_browser_shows():
    events = [JOB]
    for i in range(10):
        events += [start(100 * i, rank, i) for rank in range(1000)]
        events.append(steps(100 * i + 10, **{f"r{rank}": [1, 0.0, "step"] for rank in range(1000)}))
        events += [event(100 * i + 90, "failed", rank=rank, what=f"failed: {rank}", step=1) for rank in range(1000)]
    job = account([*events, event(1000, "done", code=1)])
    assert len(page_of(job)) < 12_000_000
    assert len(job.losses) == 10
    assert text_of(job).count("lost, with") == 1


def test_kinds_that_are_not_known_are_left_out():
    assert account([*KILLED[:5], event(3, "new", rank="?"), *KILLED[5:]]).seconds == account(KILLED).seconds


def test_halves_of_characters_in_a_log(tmp_path, capsys):
    """Names of files may have them, and JSON holds them, but no encoding does."""
    job = JOB | {"command": ["python", "tr\udcffin.py"]}
    (tmp_path / "run.jsonl").write_text("".join(lines([job, *UNDISTURBED[1:]])))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--html", str(page)]) == 0
    assert r"tr\udcffin.py" in page.read_text(encoding="utf-8")
    assert "tr\N{REPLACEMENT CHARACTER}in.py" in capsys.readouterr().out


def test_the_command(tmp_path, capsys):
    (tmp_path / "run.jsonl").write_text("".join(lines([*UNDISTURBED, *KILLED])))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "goodput 45.5%: 21 of 26 steps counted" in out
    assert out.endswith(f"\npage: {page}\n")
    assert page.read_text().startswith("<!doctype html>")
    assert main(["report", str(tmp_path / "run.jsonl"), "--job", "1"]) == 0
    assert "goodput 75.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no/run"], r"'no/run' cannot be read: No such file or directory. Name the --log-dir of a job of `replicant launch`."),
        (
            ["s3://bucket/run"],
            (
                "RUN must be a path on this machine, or on a file system that it mounts. Only files that datasets read, "
                "checkpoints and TensorBoard's logs can be at URLs. Received: PosixPath('s3:/bucket/run'). "
                "Name a local folder, and copy it with the store's own tool."
            ),
        ),
        (["run.jsonl", "--job", "3"], r"--job 3: 'run.jsonl' has 2 job(s), counted from 1."),
        (["run.jsonl", "--job", "0"], r"--job 0: 'run.jsonl' has 2 job(s), counted from 1."),
        (["run.jsonl", "--html", "no/page"], r"--html 'no/page' cannot be written: No such file or directory."),
        (["other"], r"'other': this is not a run log of `replicant launch`: no job begins in it."),
        (["empty"], r"'empty': this is not a run log of `replicant launch`: no job begins in it."),
    ],
)
def test_what_cannot_be_reported_is_told(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.jsonl").write_text("".join(lines([*UNDISTURBED, *KILLED])))
    (tmp_path / "other").write_text("hello\n")
    (tmp_path / "empty").touch()
    assert main(["report", *arguments]) == 1
    assert capsys.readouterr().err == f"replicant report: {message}\n"


def test_damage_and_clocks_are_told(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    path.write_text("".join([*lines(UNDISTURBED[:-1]), "x\n", *lines([event(1, "done", code=0)])]))
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().err == (
        f"replicant report: 1 line(s) of '{path}' cannot be read and are left out; the first is line 11.\n"
        "replicant report: the clock of this job went back 1 time(s). The report lets it stand still instead.\n"
    )


def test_a_job_begins_a_line_of_its_own(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    RunLog(path, print).begin(["a.py"], 1, None)
    with path.open("a") as file:
        file.write('{"t": 1, "ki')  # its launcher was killed
    RunLog(path, print).begin(["b.py"], 1, None)
    found, damaged, first = read(path.read_text())
    assert ([each["command"] for each in found], damaged, first) == ([["a.py"], ["b.py"]], 1, 2)
    assert found[0]["job"] != found[1]["job"]


def test_the_clock_of_a_job_is_not_set_back(tmp_path, monkeypatch):
    path = tmp_path / "run.jsonl"
    log = RunLog(path, print)
    log.begin(["a.py"], 1, None)
    monkeypatch.setattr("time.time", lambda: 0.0)
    log.write("done", code=0)
    one, two = read(path.read_text())[0]
    assert one["t"] <= two["t"] < one["t"] + 60


def test_a_disk_that_does_not_take_the_run_log_is_told_once(tmp_path):
    told = []
    log = RunLog(tmp_path / "no" / "run.jsonl", told.append)
    log.begin(["train.py"], 1, None)
    log.write("done", code=0)
    assert told == [
        f"the run log {tmp_path}/no/run.jsonl cannot be written (No such file or directory). The job goes on without it."
    ]


def test_steps_are_written_once_a_second_and_when_a_phase_begins(tmp_path):
    log = RunLog(tmp_path / "run.jsonl", print)
    progress = {0: Progress(), 1: Progress()}

    def written():
        text = (tmp_path / "run.jsonl").read_text() if (tmp_path / "run.jsonl").exists() else ""
        return [each["workers"] for each in map(json.loads, text.splitlines())]

    log.steps(0.0, progress)
    assert written() == []
    progress[0].beat(0.1, {"step": 0, "at": 0.0, "waited": 0.0, "phase": "start"})
    log.steps(1.1, progress)
    progress[0].beat(1.2, {"step": 1, "at": 1.0, "waited": 0.25, "phase": "step"})
    log.steps(1.2, progress)
    progress[0].beat(1.3, {"step": 2, "at": 1.1, "waited": 0.25, "phase": "step"})
    log.steps(1.3, progress)
    assert written() == [{"0": [0, 0.0, "start"]}, {"0": [1, 0.25, "step"]}]
    log.steps(2.3, progress)
    log.steps(9.9, progress)
    assert written()[2:] == [{"0": [2, 0.25, "step"]}]
    log.all_steps(progress)
    assert len(written()) == 3


def test_a_run_log_in_a_program_and_in_a_notebook(tmp_path):
    hostile = [{**JOB, "command": ["python", "</iframe><script>alert('x')</script>'.py"]}, *KILLED[1:]]
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(each) + "\n" for each in hostile))
    report = replicant.run_report(tmp_path)
    assert (round(report.goodput, 3), report.seconds) == (round(account(KILLED).goodput, 3), account(KILLED).seconds)
    assert str(report) == text_of(account(hostile))
    assert repr(report) == f"<RunReport of {str(tmp_path / 'run.jsonl')!r}: 45.5% of 44.0 s in steps that counted>"
    html = report._repr_html_()
    assert html.startswith("<iframe sandbox='' style='width:100%;height:640px;border:0' title='replicant report' srcdoc='")
    assert html.count("<") == 2  # of the frame; the page in it is escaped
    assert html.count("'") == 8
    assert replicant.run_report(tmp_path / "run.jsonl", job=1)._repr_html_() == html


def test_what_is_no_run_log(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"run_report: '.*run\.jsonl' cannot be read: No such file or directory\. Name the --log"
    ):
        replicant.run_report(tmp_path)
    (tmp_path / "run.jsonl").write_text("{}\n")
    with pytest.raises(ArgumentError, match=r"is not a run log of `replicant launch`: no job begins in it"):
        replicant.run_report(str(tmp_path))
    (tmp_path / "run.jsonl").write_text(json.dumps(JOB) + "\n")
    with pytest.raises(ArgumentError, match=r"run_report: job=2: '.*' has 1 job\(s\), counted from 1"):
        replicant.run_report(tmp_path, job=2)
    with pytest.raises(ArgumentTypeError, match=r"run_report takes a path; got 5 of type int"):
        replicant.run_report(5)
    with pytest.raises(ArgumentError, match="s3://"):
        replicant.run_report("s3://bucket/run")
