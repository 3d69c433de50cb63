"""Compiles CUDA C to PTX with NVRTC, and assembles PTX with ptxas.

ptx.py compile LIBNVRTC FILE.cu     the PTX on standard output
ptx.py assemble PTXAS FILE.ptx...   registers of each kernel for each target
"""

import concurrent.futures
import ctypes
import os
import re
import subprocess
import sys

# The instructions of the kernels exist since PTX 6.0 (shfl.sync), the instruction set of CUDA 9.0. NVRTC writes its
# own, newer version, which older drivers refuse; ptxas refuses what the written version does not have.
VERSION = "6.0"
OPTIONS = ["--gpu-architecture=compute_52", "--fmad=false", "--std=c++14"]
TARGETS = ["sm_52", "sm_61", "sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"]


def compile(library: str, path: str) -> str:
    nvrtc = ctypes.CDLL(library)
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    with open(path, "rb") as f:
        source = f.read()
    options = [o.encode() for o in [*OPTIONS, "--include-path=" + os.path.dirname(path)]]
    program = ctypes.c_void_p()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, path.encode(), 0, None, None):
        sys.exit("nvrtcCreateProgram failed")
    result = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))

    def text(what: str) -> str:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    sys.stderr.write(text("ProgramLog"))
    if result:
        sys.exit(f"nvrtcCompileProgram: {result}")
    ptx = text("PTX")
    ptx = ptx[ptx.index(".version") :]
    ptx = re.sub(r"\A\.version .*", ".version " + VERSION, ptx)
    by = f"// Generated from {os.path.basename(path)} by NVRTC {major.value}.{minor.value}; see tools/ci/ptx.sh. DO NOT EDIT.\n"
    return by + ptx.rstrip() + "\n"


def assemble(ptxas: str, paths: list[str]) -> None:
    """Prints the registers of each kernel; spilled registers and local memory are errors."""

    def one(job: tuple[str, str]) -> tuple[int, str]:
        path, target = job
        done = subprocess.run(
            [ptxas, "-v", "-arch=" + target, "-o", os.devnull, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.returncode, done.stdout

    jobs = [(p, t) for p in paths for t in TARGETS]
    registers: dict[str, list[int]] = {}
    bad = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (path, target), (code, log) in zip(jobs, pool.map(one, jobs)):
            if code:
                bad.append(f"{path} for {target}:\n{log}")
                continue
            kernel = ""
            for line in log.splitlines():
                if m := re.search(r"(?:entry function|Function properties for) '?(\w+)'?", line):
                    kernel = m[1]
                elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
                    if any(int(n) for n in m.groups()):
                        bad.append(f"{kernel} for {target}: {m[0]}")
                elif m := re.search(r"Used (\d+) registers", line):
                    registers.setdefault(kernel, []).append(int(m[1]))
    width = max(map(len, registers), default=0)
    print("ptx: registers".ljust(width), *(t.rjust(6) for t in TARGETS))
    for kernel in sorted(registers):
        print(kernel.ljust(width), *(str(n).rjust(6) for n in registers[kernel]))
        if len(registers[kernel]) != len(TARGETS):
            bad.append(f"{kernel}: not all targets report registers")
    if bad or not registers:
        sys.exit("\n".join(bad) or "no kernel")
    print(f"ptx: {len(registers)} kernels, {len(TARGETS)} targets, no spills")


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        sys.stdout.write(compile(*sys.argv[2:]))
    else:
        assemble(sys.argv[2], sys.argv[3:])
