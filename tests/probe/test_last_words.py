"""A script that fails by itself is told apart from a finding, in one line that says what happened."""

from accumlint.probe.present import script_error
from accumlint.probe.records import Recording, Run

# as torch.distributed.elastic (torch 2.13) writes it: the first rank to fail stands last
ELASTIC = """\
Traceback (most recent call last):
  File "run.py", line 1032, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
train.py FAILED
------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-30_18:45:09
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 1953)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1953
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_18:45:09
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 1954)
  error_file: <N/A>
  traceback : {trace}
======================================================
"""


def ranks(*endings):
    records = lambda ending: ({"k": "run", "world": len(endings)}, *([{"k": "end", "reason": ending}] if ending else []))  # noqa: E731
    return tuple(Recording(rank, len(endings), records(ending)) for rank, ending in enumerate(endings))


def test_the_rank_that_failed_first_is_named():
    output = ELASTIC.format(code="-6", trace="Signal 6 (SIGABRT) received by PID 1954")
    assert script_error(Run(ranks("", ""), 1, output=output)) == "the script ended with exit code 1: rank 1: Signal 6 (SIGABRT)"
    output = ELASTIC.format(code="3", trace="To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html")
    assert script_error(Run(ranks("", ""), 1, output=output)) == "the script ended with exit code 1: rank 1: exit code 3"


def test_what_happened_after_the_training_is_said_so():
    output = ELASTIC.format(code="-6", trace="Signal 6 (SIGABRT) received by PID 1954")
    told = script_error(Run(ranks("finished", "finished"), 1, output=output))
    assert told == "the script ended with exit code 1, after every rank had come to its end: rank 1: Signal 6 (SIGABRT)"


def test_the_last_line_that_says_anything():
    assert script_error(Run(ranks("finished"), 2, output="usage: train.py\nno such option: -x\n=====\n\n")) == "the script ended with exit code 2: no such option: -x"
    assert script_error(Run(ranks("finished"), 2)) == "the script ended with exit code 2"
    assert script_error(Run(ranks("finished"), 0, output="done\n")) == ""
