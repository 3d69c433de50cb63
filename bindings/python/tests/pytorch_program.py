"""PyTorch's own tests of collectives over our backend: pytorch_program.py [--upstream DIRECTORY] [EXPRESSION].

None of PyTorch's code is here. One suite is in the installed package, ``distributed``. Two are in files of PyTorch's
repository that no package has: with ``--upstream`` they are taken from that directory, ``gloo`` from test_c10d_gloo.py
(and test_c10d_common.py, which it imports) and ``fault_tolerance`` from test_c10d_fault_tolerance.py.
What PyTorch skips for a backend that is not Gloo is run: it thinks that the backend is Gloo when it is loaded.

Every test must pass, but for those in pytorch_expected.txt, which must end as it says. In the suite of the package
PyTorch decides itself what it skips for Gloo, and so for us. EXPRESSION is a regular expression for names of tests, as
``suite.test``.
"""

import argparse
import os
import re
import sys
import tempfile
import unittest
from datetime import timedelta
from typing import Any, Callable, Dict, Tuple

os.environ.update(BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR=tempfile.mkdtemp(), MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import DistTestCases, MultiProcessTestCase
from torch.testing._internal.distributed import distributed_test

from pytorch_list import LEAST, LIST, judge, read_list

GLOO_TIMEOUT = timedelta(seconds=50)  # that of the options which the tests of Gloo make


class Forked:
    """Processes of a test are forks of this one, which has not loaded the library: a test takes a second and not ten."""

    def _spawn_processes(self) -> None:
        self._start_processes(torch.multiprocessing.get_context("fork").Process)  # type: ignore[attr-defined]

    @classmethod
    def _run(cls, *args: Any, **named: Any) -> None:
        import gopccl.torch  # noqa: F401 (an installed package would be found without)

        init = dist.init_process_group

        def ours(backend: Any = None, *more: Any, **named: Any) -> Any:
            return init("gopccl" if backend in ("gloo", "nccl2") else backend, *more, **named)

        dist.init_process_group = ours
        super()._run(*args, **named)  # type: ignore[misc]


def of_distributed() -> type:
    for features in DistTestCases.backend_feature.values():
        if "gloo" in features:
            features.add("gopccl")

    class Distributed(Forked, distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            # These know no model for a backend of another name than Gloo's.
            named = self._testMethodName.startswith("test_accumulate_gradients_no_sync")
            distributed_test.BACKEND = "gloo" if named else "gopccl"
            super().setUp()
            self._spawn_processes()

    return Distributed


def of_gloo() -> type:
    import test_c10d_gloo as upstream  # type: ignore[import-not-found]

    class Gloo(Forked, upstream.ProcessGroupGlooTest):  # type: ignore[misc]
        def _create_process_group_gloo(self, store: Any, rank: int, world_size: int, opts: Any) -> Any:
            from gopccl.torch._core import Core
            from gopccl.torch._group import GopcclGroup

            return GopcclGroup(Core(store, rank, world_size, GLOO_TIMEOUT))

    return Gloo


def of_fault_tolerance() -> type:
    import test_c10d_fault_tolerance as upstream  # type: ignore[import-not-found]

    class FaultTolerance(Forked, upstream.AbstractFaultToleranceTest, MultiProcessTestCase):  # type: ignore[misc]
        device_type = "cpu"

        @property
        def backend_name(self) -> str:
            """The name by which a test says what it expects: one is only for NCCL, which ours passes, too."""
            return "nccl2" if self._testMethodName == "test_reconfigure_after_timeout" else "gopccl"

    return FaultTolerance


class Endings(unittest.TextTestResult):
    """Notes how each test ended."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.of: Dict[str, Tuple[str, str]] = {}

    def _note(self, test: Any, ending: str, why: str = "") -> None:
        self.of[name_of(test)] = (ending, why)

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._note(test, "fails", "did not end")

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self._note(test, "passes")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self._note(test, "skips", reason)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, "fails", self.failures[-1][1])

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, "fails", self.errors[-1][1])

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, "fails", f"{subtest}: {err[1]!r}")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self._note(test, "passes")

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._note(test, "fails", "it passes, and PyTorch expects that it fails")


SUITES: Dict[str, Callable[[], type]] = {"distributed": of_distributed, "gloo": of_gloo, "fault_tolerance": of_fault_tolerance}
_suite_of: Dict[type, str] = {}


def name_of(test: Any) -> str:
    test = getattr(test, "test_case", test)  # of a subtest
    return f"{_suite_of[type(test)]}.{test.id().split('.')[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", default="")
    parser.add_argument("expression", nargs="?", default="")
    args = parser.parse_args()
    names = list(SUITES) if args.upstream else ["distributed"]
    if args.upstream:
        sys.path.insert(0, args.upstream)
    chosen, suite = re.compile(args.expression), unittest.TestSuite()
    for name in names:
        cls = SUITES[name]()
        _suite_of[cls] = name
        for t in unittest.defaultTestLoader.loadTestsFromTestCase(cls):
            if chosen.search(name_of(t)):
                suite.addTest(t)
    result: Any = unittest.TextTestRunner(verbosity=2, resultclass=Endings).run(suite)
    listed = read_list(LIST.read_text())
    wrong = judge(listed, result.of, whole=not args.expression, least={n: LEAST[n] for n in names})
    for ending in ("passes", "fails", "skips"):
        of = [t for t, (e, _) in result.of.items() if e == ending]
        print(f"{len(of)} tests: {ending}", flush=True)
    for x in listed:
        if any(x.names(t) for t in result.of):
            print(f"as listed: {x.name} {x.ending}: {x.why}", flush=True)
    print("\n".join(wrong), flush=True)
    sys.exit(bool(wrong) or not result.of)


if __name__ == "__main__":
    main()
