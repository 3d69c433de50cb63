"""Builds the library and the program with the Go toolchain and puts them into the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VERSION = os.environ.get("GOPCCL_VERSION", "0.1.0")
LIBRARY = {"win32": "gopccl.dll", "darwin": "libgopccl.dylib"}.get(sys.platform, "libgopccl.so")
PROGRAM = "gopccl.exe" if sys.platform == "win32" else "gopccl"


class Build(build_py):
    """build_py, and the Go parts: from GOPCCL_PREBUILT (a directory) if set, else compiled."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            raise SystemExit("gopccl: no editable installs; set GOPCCL_LIBRARY and PYTHONPATH=src to work on the package")
        lib = Path(self.build_lib).resolve() / "gopccl" / "lib"
        lib.mkdir(parents=True, exist_ok=True)
        prebuilt = os.environ.get("GOPCCL_PREBUILT")
        if prebuilt:
            for name in (LIBRARY, PROGRAM):
                shutil.copy2(Path(prebuilt) / name, lib / name)
            return
        if not (ROOT / "go.mod").exists():
            raise SystemExit(f"gopccl: {ROOT} has no go.mod; install from a checkout of the whole repository")
        if shutil.which("go") is None:
            raise SystemExit("gopccl: the Go toolchain is needed to build the library (https://go.dev/dl/)")
        subprocess.run(["bash", str(ROOT / "bindings" / "c" / "build.sh"), str(lib / LIBRARY)], cwd=ROOT, check=True)
        subprocess.run(
            ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(lib / PROGRAM), "./cmd/gopccl"],
            cwd=ROOT,
            check=True,
            # On Linux with the C library that the library is linked with: the program opens the CUDA driver.
            env={**os.environ, "CGO_ENABLED": "1" if sys.platform == "linux" else "0"},
        )


class Wheel(bdist_wheel):
    """A wheel for this platform and every Python 3: nothing is compiled against Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class Binary(Distribution):
    def has_ext_modules(self):
        return True


setup(version=VERSION, distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
