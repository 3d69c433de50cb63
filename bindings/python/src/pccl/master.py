"""The master's command line under pypccl's name: ``python -m pccl.master``."""

from gopccl.master import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
