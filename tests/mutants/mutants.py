#!/usr/bin/env python3
"""Applies seeded faults to copies of the source, one at a time, and shows which test notices each.

usage: mutants.py --build DIR [--jobs N] [--filter TEXT] [--list FILE]

The list's format is in README.md. The unchanged copy is built first and must pass every test that
the list names; a mutant then gets a copy of that (objects included), is built as far as a test
needs, and runs its own tests in order, then the fast part of the suite. It is killed by the first
test that fails, crashes or hangs. Last line: `N passed, N failed`: killed, survived. A mutant that
does not apply or does not compile is an error of the list: it counts as failed. Exit status 1 when
anything failed or nothing ran."""

import argparse
import concurrent.futures
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = ("Makefile", "client", "daemon", "deploy", "kernels", "proto", "tests")
# What a mutant runs when its own tests pass; NAME:CASES sets EPD_TEST_CASE.
FAST = ("unit/proto/*", "unit/engine/*", "unit/client/*", "unit/core/*", "unit/ipc/*",
        "conformance/input_test", "conformance/epoch_test", "conformance/matrix_test:s*")
# Faults are judged by tests alone: -w, because a fault may leave a variable unused.
MAKE = ("make", "--no-print-directory", "O=build", "WITH_CUDA=0", "CFLAGS=-w")
HANG_FACTOR, HANG_SECONDS = 5, 20


@dataclasses.dataclass
class Mutant:
    name: str
    line: int
    file: str = ""
    tests: list = dataclasses.field(default_factory=list)
    old: list = dataclasses.field(default_factory=list)
    new: list = dataclasses.field(default_factory=list)


class ListError(Exception):
    pass


def parse(path):
    """Blocks of `mutant:`, `file:`, `tests:`, then `- old` and `+ new` lines."""
    mutants = []
    with open(path, encoding="utf-8") as f:
        for number, raw in enumerate(f, 1):
            line = raw.rstrip("\n")
            key, _, value = line.partition(":")
            if not line.strip() or line.startswith("#"):
                continue
            if key == "mutant":
                mutants.append(Mutant(value.strip(), number))
            elif mutants and key == "file":
                mutants[-1].file = value.strip()
            elif mutants and key == "tests":
                mutants[-1].tests += value.split()
            elif mutants and line[:2] in ("- ", "-"):
                mutants[-1].old.append(line[2:])
            elif mutants and line[:2] in ("+ ", "+"):
                mutants[-1].new.append(line[2:])
            else:
                raise ListError(f"{path}:{number}: not understood: {line}")
    names = [m.name for m in mutants]
    for m in mutants:
        if not (m.file and m.tests and m.old) or names.count(m.name) != 1:
            raise ListError(f"{path}:{m.line}: {m.name}: needs file, tests and old text, "
                            "and a name of its own")
    return mutants


def apply(mutant, tree):
    path = os.path.join(tree, mutant.file)
    old, new = "\n".join(mutant.old), "\n".join(mutant.new)
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except OSError as error:
        raise ListError(f"cannot read {mutant.file}: {error.strerror}") from error
    if text.count(old) != 1 or old == new:
        raise ListError(f"{mutant.file} has its old text {text.count(old)} times, not once")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace(old, new))


def run(command, cwd, env, limit):
    """(exit status or None for a hang, output)."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    chunks = []
    # A left-over child may hold the pipe open: read in a thread, judge by the program's own end.
    reader = threading.Thread(target=lambda: chunks.extend(iter(lambda: process.stdout.read1(65536), b"")))
    reader.daemon = True
    reader.start()
    try:
        status = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        status = None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
    reader.join(timeout=5)
    return status, b"".join(chunks).decode("utf-8", "replace")


def environment(tree, cases):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("EPD_") and k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    env.update(EPD_BIN_DIR=os.path.join(tree, "build/bin"), LC_ALL="C", EPD_TEST_SLOW="2",
               EPD_LIB_DIR=os.path.join(tree, "build/lib"), CMOCKA_MESSAGE_OUTPUT="STDOUT")
    if cases:
        env["EPD_TEST_CASE"] = cases
    return env


def build(tree, tests, jobs=1):
    targets = ["build/tests/" + t.partition(":")[0] for t in tests]
    if any(not t.startswith("unit/") for t in tests):
        targets.append("all")
    env = environment(tree, "")
    return run([*MAKE, f"-j{jobs}", *targets], tree, env, 900)


def run_test(tree, test, limit):
    name, _, cases = test.partition(":")
    program = os.path.join(tree, "build/tests", name)
    return run([program], tree, environment(tree, cases), limit)


def culprit(status, output):
    """The test case that failed."""
    failed = re.findall(r"^\[  FAILED  \] (?!\d)([\w-]+)", output, re.M)
    begun = re.findall(r"^\[ RUN      \] ([\w-]+)", output, re.M)
    how = "hang" if status is None else f"signal {-status}" if status < 0 else ""
    if status is None or status < 0:
        failed = begun[-1:]
    where = failed[0] if failed else ""
    return " ".join(part for part in (where, f"({how})" if how else "") if part)


class Runner:
    def __init__(self, args, mutants):
        self.base = os.path.join(os.path.abspath(args.build), "base")
        self.build_dir = os.path.abspath(args.build)
        self.jobs, self.mutants = args.jobs, mutants
        self.seconds = {}  # of each test, unchanged

    def expand(self, pattern):
        name, colon, cases = pattern.partition(":")
        if not name.endswith("/*"):
            return [pattern]
        folder = os.path.join(self.base, "tests", name[:-2])
        return sorted(f"{name[:-2]}/{f[:-2]}{colon}{cases}" for f in os.listdir(folder)
                      if f.endswith("_test.c"))

    def prepare(self):
        """The unchanged copy, built, with every test passing."""
        shutil.rmtree(self.build_dir, ignore_errors=True)
        os.makedirs(self.base)
        for name in SOURCES:
            source = os.path.join(ROOT, name)
            if os.path.isdir(source):
                shutil.copytree(source, os.path.join(self.base, name), symlinks=True)
            elif os.path.exists(source):
                shutil.copy2(source, self.base)
        self.fast = [t for pattern in FAST for t in self.expand(pattern)]
        tests = sorted({t for m in self.mutants for t in m.tests} | set(self.fast))
        status, output = build(self.base, tests, self.jobs)
        if status != 0:
            raise ListError(f"the unchanged source does not build:\n{output[-4000:]}")
        for test in tests:
            start = time.monotonic()
            status, output = run_test(self.base, test, 600)
            self.seconds[test] = time.monotonic() - start
            if status not in (0, 77):
                raise ListError(f"{test} fails on the unchanged source:\n{output[-4000:]}")

    def judge(self, mutant):
        """(killed, text)."""
        tree = os.path.join(self.build_dir, re.sub(r"[^\w-]", "-", mutant.name))
        try:
            shutil.copytree(self.base, tree, symlinks=True)
            apply(mutant, tree)
            for test in [*mutant.tests, *(t for t in self.fast if t not in mutant.tests)]:
                status, output = build(tree, [test])
                if status != 0:
                    return False, f"does not compile: {output[-1500:]}"
                status, output = run_test(tree, test, HANG_SECONDS + HANG_FACTOR * self.seconds[test])
                if status not in (0, 77):
                    return True, f"{test} {culprit(status, output)}".strip()
            return False, "SURVIVED"
        except ListError as error:
            return False, f"error in the list: {error}"
        finally:
            shutil.rmtree(tree, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--filter", default="")
    parser.add_argument("--list", default=os.path.join(os.path.dirname(__file__), "list.txt"))
    args = parser.parse_args()
    start = time.monotonic()
    passed = failed = 0
    try:
        mutants = [m for m in parse(args.list) if args.filter in m.name]
        runner = Runner(args, mutants)
        runner.prepare()
    except ListError as error:
        print(error)
        print("0 passed, 1 failed")
        return 1
    print(f"unchanged source: {len(runner.seconds)} test programs pass ({time.monotonic() - start:.0f} s)")
    print(f"{'fault':<36}{'file':<32}failing test")
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, args.jobs)) as pool:
        for mutant, (killed, text) in zip(mutants, pool.map(runner.judge, mutants)):
            passed, failed = passed + killed, failed + (not killed)
            print(f"{mutant.name:<36}{mutant.file:<32}{text}", flush=True)
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
