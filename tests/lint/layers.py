#!/usr/bin/env python3
"""Who may include whom.

usage: layers.py [--root DIR] LAYER:ALLOWED,ALLOWED...

A layer is a folder (daemon/ stands before base, ipc, core, rpc, engine), one header of a folder, or
"main" (daemon/main.c). Fails on an edge that is not listed, on a cycle of layers or of headers, on
gRPC headers outside the rpc folders and on CUDA headers outside kernels/ and daemon/engine/cuda/.
Tests may include everything; nothing may include tests."""

import argparse
import os
import re
import subprocess
import sys

IN_DAEMON = ("base", "ipc", "core", "rpc", "engine", "main")
FOLDERS = ("proto", "client", "daemon", "kernels", "tests")
SUFFIXES = (".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.M)
# Third-party headers with a folder of their own: pattern -> who may include them.
RESERVED = (
    (re.compile(r"^(grpc|grpcpp)/"), ("daemon/rpc/", "client/rpc/")),
    (re.compile(r"^(cuda|nccl|device_launch|cooperative_groups)"), ("kernels/", "daemon/engine/cuda/")),
)


def sources(root):
    for folder in FOLDERS:
        for where, folders, files in os.walk(os.path.join(root, folder)):
            folders.sort()
            for name in sorted(files):
                if name.endswith(SUFFIXES):
                    yield os.path.relpath(os.path.join(where, name), root)


def layer_of(path, layers):
    """The layer with the longest name that contains the file, or None."""
    if path == "daemon/main.c":
        return "main"
    best = None
    for layer in layers:
        prefix = "daemon/" + layer if layer in IN_DAEMON else layer
        if path == prefix or path.startswith(prefix + "/"):
            if best is None or len(layer) > len(best):
                best = layer
    return best


def cycle_of(edges):
    """What tsort says about a cycle in pairs, or ''."""
    text = "".join(f"{a} {b}\n" for a, b in sorted(edges))
    done = subprocess.run(["tsort"], input=text, capture_output=True, text=True, check=False)
    return done.stderr.replace("tsort: ", "  ") if done.returncode else ""


def check_file(path, root, layers, problems, edges):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        text = f.read()
    is_test = path.startswith("tests/")
    mine = layer_of(path, layers)
    if mine is None and not is_test:
        problems.append(f"{path}: belongs to no layer (LAYERS in the Makefile)")
        return
    for kind, target in INCLUDE.findall(text):
        if kind == "<" and not is_test:
            for pattern, homes in RESERVED:
                if pattern.match(target) and not path.startswith(homes):
                    problems.append(f"{path}: <{target}> belongs in {' and '.join(homes)} only")
        if kind == "<" or is_test:
            continue
        theirs = layer_of(target, layers)
        if "/" not in target:
            problems.append(f"{path}: \"{target}\": include paths start at the root")
        elif theirs is None:
            problems.append(f"{path}: \"{target}\" belongs to no layer")
        elif theirs != mine and theirs not in layers[mine]:
            problems.append(f"{path}: {mine} may not include {theirs} (\"{target}\")")
        edges["layer"].update([(mine, theirs)] if theirs not in (mine, None) else [])
        if path.endswith((".h", ".cuh")):
            edges["header"].add((path, target))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default=".")
    parser.add_argument("layers", nargs="+")
    args = parser.parse_args()
    layers = {}
    for entry in args.layers:
        name, _, allowed = entry.partition(":")
        layers[name] = set(filter(None, allowed.split(",")))
    problems, edges, count = [], {"layer": set(), "header": set()}, 0
    for path in sources(args.root):
        check_file(path, args.root, layers, problems, edges)
        count += 1
    for kind, pairs in edges.items():
        cycle = cycle_of(pairs)
        if cycle:
            problems.append(f"cycle of {kind}s:\n{cycle}")
    for problem in problems:
        print(f"layers: {problem}", file=sys.stderr)
    if not problems:
        print(f"layers: ok ({count} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
