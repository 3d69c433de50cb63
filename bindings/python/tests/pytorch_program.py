"""PyTorch's own tests of collectives, of the installed package, over our backend: pytorch_program.py [EXPRESSION].

None of PyTorch's code is here. What PyTorch skips for a backend that is not Gloo is run:
it thinks that the backend is Gloo when it is loaded. ``LEFT_OUT`` says what is not run, and why.
EXPRESSION is a regular expression for names of tests.
"""

import os
import re
import sys
import tempfile
import unittest

os.environ.update(BACKEND="gloo", WORLD_SIZE="3", TEMP_DIR=tempfile.mkdtemp(), MASTER_ADDR="127.0.0.1", OMP_NUM_THREADS="1")

import torch
from torch.testing._internal.common_distributed import DistTestCases
from torch.testing._internal.distributed import distributed_test as upstream

upstream.BACKEND = "gopccl"
for features in DistTestCases.backend_feature.values():
    if "gloo" in features:
        features.add("gopccl")

# By the beginning of the name, and why.
LEFT_OUT: dict[str, str] = {
    "test_barrier_timeout_": "it wants Gloo's words; ours are 'timed out after 1000ms', which PyTorch's newer tests want",
    "test_sparse_all_reduce": "sparse tensors are refused",
}


class Tests(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
    """Processes are forks of this one, which has not loaded the library: a test takes a second and not ten."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def main() -> None:
    chosen = re.compile(sys.argv[1] if len(sys.argv) > 1 else "")
    suite = unittest.TestSuite()
    for t in unittest.defaultTestLoader.loadTestsFromTestCase(Tests):
        name = t.id().split(".")[-1]
        why = next((why for beginning, why in LEFT_OUT.items() if name.startswith(beginning)), None)
        if why is not None:
            print(f"left out: {name}: {why}", flush=True)
        elif chosen.search(name):
            suite.addTest(t)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
