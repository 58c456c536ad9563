#!/usr/bin/env python3
"""clang-tidy on one file, less the exceptions of exceptions.txt.

usage: tidy.py [--exceptions FILE] SOURCE -- COMPILER FLAGS..."""

import os
import re
import subprocess
import sys

import exceptions

FINDING = re.compile(r"^(?P<file>[^\s:]+):\d+:\d+: (warning|error): (?P<text>.*) \[(?P<check>[^\]]+)\]$")
FUNCTION = re.compile(r"^function '([^']+)' exceeds")


def findings(output):
    """(file, text, check, lines of the finding)"""
    current = None
    for line in output.splitlines():
        match = FINDING.match(line)
        if match:
            if current:
                yield current
            current = (os.path.relpath(match["file"]), match["text"], match["check"], [line])
        elif current:
            current[3].append(line)
    if current:
        yield current


def main(argv):
    listed = os.path.join(os.path.dirname(__file__), "exceptions.txt")
    if argv[:1] == ["--exceptions"]:
        listed, argv = argv[1], argv[2:]
    allowed = exceptions.load(listed)
    done = subprocess.run(["clang-tidy", "--quiet", *argv], capture_output=True, text=True, check=False)
    kept, excused = [], 0
    for file, text, check, lines in findings(done.stdout):
        function = FUNCTION.match(text)
        name = check.split(",")[0]
        if (function and exceptions.excused(allowed, "function-size", f"{file}:{function.group(1)}")
                or exceptions.excused(allowed, "tidy", f"{file}:{name}")):
            excused += 1
        else:
            kept += lines
    if done.returncode and not kept and not excused: # clang-tidy itself failed
        kept = [done.stdout, done.stderr]
    if kept:
        print("\n".join(kept), file=sys.stderr)
    return 1 if kept else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
