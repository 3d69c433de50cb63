"""The list of PyTorch's tests that do not pass over our backend, and what it says of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

LIST = Path(__file__).with_name("pytorch_expected.txt")

# Skips that are about the machine, and are not listed.
MACHINE = re.compile(r"accelerator|CUDA|GPU|ROCm")

# How many tests of a suite pass at the least. A machine and a version of PyTorch decide how many it is:
# these are well below that, and tell a suite that was skipped.
LEAST = {"distributed": 40, "gloo": 25, "fault_tolerance": 10}


class Line(NamedTuple):
    """What the list says of some tests."""

    name: str  # suite.test; an asterisk at its end stands for any rest
    ending: str  # fails, skips
    why: str

    def names(self, test: str) -> bool:
        return test.startswith(self.name[:-1]) if self.name.endswith("*") else test == self.name


def read_list(text: str) -> List[Line]:
    lines = []
    for row in text.splitlines():
        if row.strip() and not row.startswith("#"):
            name, ending, why = row.split(None, 2)
            if ending not in ("fails", "skips"):
                raise ValueError(f"{LIST.name}: {row!r}: a test fails or skips")
            lines.append(Line(name, ending, why))
    return lines


def allowed(test: str, why: str) -> bool:
    """Whether a test may be skipped that is not listed."""
    return test.startswith("distributed.") or MACHINE.search(why) is not None


def judge(listed: List[Line], endings: Dict[str, Tuple[str, str]], whole: bool, least: Optional[Dict[str, int]] = None) -> List[str]:
    """What is not as listed; ``endings`` has (passes, fails or skips; why) by test, ``whole`` is false if tests were chosen.

    ``least`` is how many tests of a suite pass at the least.
    """
    wrong = []
    for test, (ending, why) in endings.items():
        line = next((x for x in listed if x.names(test)), None)
        if line is not None and line.ending != ending:
            wrong.append(f"{test} {ending}, and {LIST.name} says that it {line.ending}: {line.why}")
        elif line is None and (ending == "fails" or ending == "skips" and not allowed(test, why)):
            wrong.append(f"{test} {ending}, and {LIST.name} does not have it: {_last(why)}")
    suites = {test.split(".")[0] for test in endings}
    for x in listed:
        if whole and x.name.split(".")[0] in suites and not any(x.names(test) for test in endings):
            wrong.append(f"{LIST.name} has {x.name}, which is not a test any more")
    for suite, n in (least or {}).items():
        passed = sum(ending == "passes" for test, (ending, _) in endings.items() if test.split(".")[0] == suite)
        if whole and passed < n:
            wrong.append(f"{passed} tests of {suite} pass, and at least {n} have to")
    return wrong


def _last(why: str) -> str:
    """The last line of a trace that names an error, or of another text."""
    lines = [x.strip() for x in why.splitlines() if x.strip()]
    return next((x for x in reversed(lines) if re.match(r"[\w.]*(Error|Exception|Failure|Refused)\b", x)), lines[-1] if lines else "")
