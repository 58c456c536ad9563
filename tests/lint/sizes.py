#!/usr/bin/env python3
"""File sizes: .c, .cu at most 500 lines, .h, .cuh at most 250, the Makefile at most 300.

usage: sizes.py [--exceptions FILE] FILE..."""

import argparse
import os
import sys

import exceptions

LIMITS = {".c": 500, ".cu": 500, ".h": 250, ".cuh": 250, "": 300}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--exceptions", default=os.path.join(os.path.dirname(__file__), "exceptions.txt"))
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    allowed = exceptions.load(args.exceptions)
    bad = 0
    for path in args.files:
        with open(path, encoding="utf-8") as f:
            lines = sum(1 for _ in f)
        limit = LIMITS[os.path.splitext(path)[1]]
        if lines > limit and not exceptions.excused(allowed, "size", path):
            print(f"sizes: {path} has {lines} lines, at most {limit}: split it, or give a reason in "
                  f"{args.exceptions}", file=sys.stderr)
            bad += 1
    if not bad:
        print(f"sizes: ok ({len(args.files)} files)")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
