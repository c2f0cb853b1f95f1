# SPDX-License-Identifier: Apache-2.0
"""What broken memory might do to a kernel after every proof of it: its first instruction becomes another
one, in every object that a server has loaded. Nothing may run meanwhile."""

import os
import platform
import re
import subprocess

RETURNS = {"x86_64": b"\xc3", "aarch64": bytes.fromhex("c0035fd6")}  # it computes nothing
FAULTS = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}  # an instruction that is none: SIGILL


def objects(pid):
    """Where each object lies in the process, by a path that it can be read at."""
    open_files = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if "whet-kernel" in os.readlink(path):  # another rank's copy, which has no name
            open_files[os.stat(path).st_ino] = path
    lowest = {}
    for line in open(f"/proc/{pid}/maps"):
        addresses, _, _, _, inode, *path = line.split(maxsplit=5)
        found = open_files.get(int(inode)) or (path and ".objects/" in path[0] and path[0].strip())
        if found:
            lowest.setdefault(found, int(addresses.split("-")[0], 16))
    return lowest


def overwrite_kernels(pid, instruction):
    found = objects(pid)
    assert found, "no object is loaded"
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for path, base in found.items():
            symbols = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
            kernel = base + int(re.search(r"^([0-9a-f]+) . whet_kernel$", symbols, re.M)[1], 16)
            memory.seek(kernel + 16)  # run, behind the three numbers of struct cpu_kernel
            memory.seek(int.from_bytes(memory.read(8), "little"))
            memory.write(instruction[platform.machine()])
