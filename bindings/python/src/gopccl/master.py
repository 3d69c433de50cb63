"""Command line of the master: ``python -m gopccl.master [--listen-address 0.0.0.0:48148]``."""

from __future__ import annotations

import argparse
import logging

from gopccl._node import MasterNode


def main() -> None:
    """Run a master until it is interrupted or killed."""
    parser = argparse.ArgumentParser(prog="pccl_master", description="Coordinate a run of gopccl or PCCL peers.")
    parser.add_argument("--listen-address", default="0.0.0.0:48148", metavar="HOST:PORT", help="default %(default)s")
    address = parser.parse_args().listen_address
    logging.basicConfig(level=logging.INFO)
    master = MasterNode(address)
    try:
        master.run()
        logging.info("master listens on %s", address)
        master.wait()
    except KeyboardInterrupt:
        logging.info("interrupted")
    finally:
        master.close()


if __name__ == "__main__":
    main()
