"""torchft's own tests, of its installed package, with our process group in the place of Gloo's: torchft_program.py.

None of torchft's code is here. Its tests are imported, the name of its Gloo group in
them is given to ours, and those that are about Gloo alone are left out, see ``LEFT_OUT``.
"""

import json
import sys
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist
from gopccl.torchft import ProcessGroupGopccl
from torchft import manager_integ_test, process_group_test, reconfigure_test

LEFT_OUT = {
    "ProcessGroupTest.test_gloo_timeout": "it makes up the handle of a Gloo group; Ours.test_timeout has a real one",
    "ReconfigureTest.test_rendezvous": "it tests the store in Gloo's handles; ours have a master",
    "ReconfigureTest.test_resize_and_recover_0_gloo": "it names PyTorch's backend; torch_fault_program.py has the same with ours",
}
CLASSES = [
    (process_group_test, "ProcessGroupTest"),
    (reconfigure_test, "ReconfigureTest"),
    (manager_integ_test, "ManagerIntegTest"),
]


class Ours(unittest.TestCase):
    def test_timeout(self) -> None:
        pg, absent = ProcessGroupGopccl(timeout=timedelta(seconds=0.01)), ProcessGroupGopccl()
        opts = process_group_test.ReconfigureOptions()
        opts.uuid = 1
        opts.handles = [pg.get_reconfigure_handle(), absent.get_reconfigure_handle()]
        with self.assertRaisesRegex(RuntimeError, "timed out after 10ms"):
            pg.reconfigure(opts).wait()
        self.assertIsNotNone(pg.errored())
        for g in (pg, absent):
            g.shutdown()

    def test_other_kinds(self) -> None:
        pg = ProcessGroupGopccl()
        opts = process_group_test.ReconfigureOptions()
        opts.handles = [pg.get_reconfigure_handle(), json.dumps({"id": "x", "store": "", "global_rank": None})]
        with self.assertRaisesRegex(RuntimeError, "another kind"):
            pg.reconfigure(opts)
        with self.assertRaisesRegex(RuntimeError, "_reconfigure first"):
            pg.allreduce([torch.ones(1)], dist.ReduceOp.SUM)
        pg.shutdown()
        with self.assertRaisesRegex(RuntimeError, "not initialized"):
            pg.barrier()


class Collectives(process_group_test.MultiPgBaseTest):
    """Three ranks, as torchft has them; also the collectives that its Gloo group refuses."""

    WORLD_SIZE = 3

    @classmethod
    def _create_pg(cls, backend: str) -> ProcessGroupGopccl:
        return ProcessGroupGopccl(timeout=timedelta(seconds=10))


def add(collective: str) -> None:
    """By names that put the tests which end a group behind those that use the first one."""
    setattr(Collectives, f"test_collective_{collective}", lambda self: self._run_parallel(collective))
    setattr(Collectives, f"test_collective_with_resiliency_{collective}", lambda self: self._run_with_resiliency(collective))


def main() -> None:
    for collective in process_group_test._ALL_COLLECTIVES:
        add(collective)
    suite = unittest.TestSuite()
    load = unittest.defaultTestLoader.loadTestsFromTestCase
    for test in (Ours, Collectives):
        suite.addTests(load(test))
    for module, name in CLASSES:
        module.ProcessGroupGloo = ProcessGroupGopccl
        for t in load(getattr(module, name)):
            known = ".".join(t.id().split(".")[-2:])
            if known in LEFT_OUT:
                print(f"left out: {known}: {LEFT_OUT[known]}", flush=True)
            elif not any(other in known for other in ("baby", "nccl", "_cuda", "torchcomms")):  # other groups of torchft's, devices
                suite.addTest(t)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
