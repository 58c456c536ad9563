#!/usr/bin/env python3
"""Runs tests, one line each, and ends with `N passed, N failed[, N skipped]`.

usage: run-tests.py --build DIR [--filter TEXT] [--jobs N] [--sanitizer NAMES] [--retry 1] SOURCE...

--retry 1 runs a failed test once more and says FLAKY when it then passes: for a loaded CI machine,
never by default.

A SOURCE is a tests/**/*_test.c (its program is DIR/tests/.../*_test), *_test.py or *_test.sh. The
tests of a cmocka program count one by one, any other program counts as one. Exit status 77:
skipped. `test-timeout: N` in a comment near the top of the source sets the deadline in seconds
(default 120, times EPD_TEST_SLOW); a test that passes it is killed with its process group.
Exit status 1 on a failure, or when nothing ran."""

import argparse
import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

DEFAULT_TIMEOUT = 120
SKIP = 77
# How much slower a sanitized build may be: deadlines and latency bounds are multiplied by it.
SLOW = {"": 1, "address,undefined": 3, "thread": 8}
CMOCKA = re.compile(r"^\[(={10}|  PASSED  |  FAILED  |  SKIPPED )\] (Running )?(\d+) test\(s\)", re.M)
PRINTING = threading.Lock()


class Result:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.seconds = 0.0
        self.note = ""
        self.output = ""


def timeout_of(source):
    with open(source, encoding="utf-8", errors="replace") as f:
        for _, line in zip(range(10), f):
            found = re.search(r"test-timeout:\s*(\d+)", line)
            if found:
                return int(found.group(1))
    return DEFAULT_TIMEOUT


def command_of(source, build):
    if source.endswith(".c"):
        relative = source[source.index("tests/"):]
        return [os.path.join(os.path.abspath(build), relative[:-2])]
    if source.endswith(".py"):
        return [sys.executable, source]
    return ["/bin/sh", source]


def fixed_addresses(sanitizer):
    """gcc 12's thread sanitizer does not know every layout that newer kernels choose at random."""
    prefix = ["setarch", "-R"]
    if sanitizer != "thread" or shutil.which(prefix[0]) is None:
        return []
    done = subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL, check=False)
    return prefix if done.returncode == 0 else []


def environment(sanitizer):
    """The caller's, without settings that would reach the programs under test."""
    keep = ("EPD_TEST_", "EPD_BIN_DIR", "EPD_LIB_DIR", "EPD_SYSTEM_PYTHON")
    env = {k: v for k, v in os.environ.items() if not k.startswith("EPD_") or k.startswith(keep)}
    for name in ("NOTIFY_SOCKET", "JOURNAL_STREAM", "WATCHDOG_USEC", "WATCHDOG_PID", "MAKEFLAGS",
                 "MAKELEVEL", "MFLAGS"):
        env.pop(name, None)
    env["LC_ALL"] = "C"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    env["CMOCKA_MESSAGE_OUTPUT"] = "STDOUT"
    env.setdefault("EPD_TEST_SLOW", str(SLOW.get(sanitizer, 1)))
    if not sanitizer:
        return env
    suppressions = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tsan.supp")
    env["EPD_TEST_SANITIZER"] = sanitizer
    env["ASAN_OPTIONS"] = ("abort_on_error=1:halt_on_error=1:detect_stack_use_after_return=1:"
                           "strict_string_checks=1:allocator_may_return_null=1:"
                           "disable_coredump=1:handle_abort=0")
    env["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1:abort_on_error=1"
    env["TSAN_OPTIONS"] = ("ignore_noninstrumented_modules=1:halt_on_error=1:abort_on_error=1:"
                           "second_deadlock_stack=1:die_after_fork=0:atexit_sleep_ms=0")
    if os.path.exists(suppressions):
        env["TSAN_OPTIONS"] += ":suppressions=" + suppressions
    return env


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def count(result, output, status):
    """Counts of cmocka's group summaries, else one test by exit status. A skip says why."""
    announced = finished = 0
    for kind, running, number in CMOCKA.findall(output):
        number = int(number)
        if kind == "  PASSED  ":
            result.passed += number
        elif kind == "  FAILED  ":
            result.failed += number
        elif kind == "  SKIPPED ":
            result.skipped += number
        elif running:
            announced += number
        else:
            finished += number
    reasons = [line for line in output.splitlines() if "skip" in line.lower() and line[:1] != "["]
    if result.skipped and reasons:
        result.note = reasons[-1]
    if status == SKIP and result.failed == 0:
        result.skipped = max(result.skipped, 1)
        result.note = reasons[-1] if reasons else "exit status 77"
    elif status != 0 and result.failed == 0:
        result.failed = 1
        result.note = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    elif announced != finished:
        result.failed += 1
        result.note = f"ended after {finished} of {announced} tests"
    elif announced == 0 and status == 0:
        result.passed += 1


def run_one(source, args, env):
    result = Result()
    limit = timeout_of(source) * float(env["EPD_TEST_SLOW"])
    start = time.monotonic()
    try:
        process = subprocess.Popen([*args.prefix, *command_of(source, args.build)], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                                   start_new_session=True)
    except OSError as error:
        result.failed, result.note = 1, str(error)
        return result
    chunks = []
    # A left-over child may hold the pipe open: read in a thread, judge by the test's own end.
    reader = threading.Thread(target=lambda: chunks.extend(iter(lambda: process.stdout.read1(65536), b"")))
    reader.daemon = True
    reader.start()
    try:
        status = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        status = None
    kill_group(process)
    process.wait()
    reader.join(timeout=5)
    result.seconds = time.monotonic() - start
    result.output = b"".join(chunks).decode("utf-8", "replace")
    if status is None:
        result.failed, result.note = 1, f"killed after its deadline of {limit:g} s"
    else:
        count(result, result.output, status)
    return result


def report(source, result):
    name = re.sub(r"^.*?tests/|\.c$", "", source)
    verdict = "FAIL" if result.failed else "ok" if result.passed else "skip"
    parts = [f"{n} {word}" for n, word in ((result.passed, "passed"), (result.failed, "failed"),
                                           (result.skipped, "skipped")) if n]
    note = f" ({result.note})" if result.note else ""
    with PRINTING:
        if result.failed:
            print(f"---- output of {name}")
            print(result.output, end="" if result.output.endswith("\n") else "\n")
            print("----")
        print(f"{verdict:<5}{name:<42} {', '.join(parts):<24}{result.seconds:8.2f} s{note}",
              flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--filter", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sanitizer", default="")
    parser.add_argument("--retry", type=int, default=0)
    parser.add_argument("sources", nargs="*")
    args = parser.parse_args()
    args.prefix = fixed_addresses(args.sanitizer)
    env = environment(args.sanitizer)
    chosen = [s for s in args.sources if args.filter in s]
    total = Result()
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, args.jobs)) as pool:
        def one(source):
            result = run_one(source, args, env)
            if result.failed and args.retry:
                report(source, result)
                result = run_one(source, args, env)
                if not result.failed:
                    result.note = "FLAKY: passed when run again, its first output is above"
            report(source, result)
            return result
        for result in pool.map(one, chosen):
            total.passed += result.passed
            total.failed += result.failed
            total.skipped += result.skipped
    ran = total.passed + total.failed
    if ran == 0:
        print("no test ran", flush=True)
    tail = f", {total.skipped} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {total.failed} failed{tail}", flush=True)
    return 1 if total.failed or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
