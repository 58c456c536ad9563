#!/usr/bin/env python3
"""The lint scripts find what is planted, and pass what is right."""

import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LAYERS = ("proto:", "base:proto", "ipc:base,proto", "rpc:ipc,base,proto", "client/rpc/table.h:proto",
          "client:client/rpc/table.h,proto", "client/rpc:client,client/rpc/table.h,proto",
          "main:base,ipc,rpc")
CLEAN = {
    "proto/errors.h": "",
    "daemon/base/log.h": '#include "proto/errors.h"\n#include <stdio.h>\n',
    "daemon/base/log.c": '#include "daemon/base/log.h"\n',
    "daemon/ipc/peer.c": '#include "daemon/base/log.h"\n',
    "daemon/rpc/server.c": '#include <grpc/grpc.h>\n#include "daemon/ipc/peer.h"\n',
    "daemon/main.c": '#include "daemon/rpc/server.h"\n',
    "client/call.c": '#include "client/rpc/table.h"\n',
    "client/rpc/table.h": "",
    "client/rpc/table.c": '#include "client/rpc/table.h"\n#include "client/call.h"\n',
    "tests/unit/base/log_test.c": '#include "daemon/base/log.h"\n#include "tests/support/check.h"\n',
}


def tree(folder, files):
    for path, text in files.items():
        full = os.path.join(folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(text)


def script(name, *args):
    done = subprocess.run([sys.executable, os.path.join(HERE, name), *args], capture_output=True,
                          text=True, check=False)
    return done.returncode, done.stdout + done.stderr


class Layers(unittest.TestCase):
    def run_on(self, planted):
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, {**CLEAN, **planted})
            return script("layers.py", "--root", folder, *LAYERS)

    def test_clean(self):
        status, output = self.run_on({})
        self.assertEqual(status, 0, output)

    def test_planted(self):
        for path, text, want in (
            ("daemon/base/bad.c", '#include "daemon/ipc/peer.h"\n', "base may not include ipc"),
            ("daemon/base/bad.c", '  #  include "daemon/ipc/peer.h"\n', "base may not include ipc"),
            ("proto/bad.h", '#include "daemon/base/log.h"\n', "proto may not include base"),
            ("client/bad.c", '#include "daemon/base/log.h"\n', "client may not include base"),
            ("client/bad.c", '#include "client/rpc/server.h"\n', "client may not include client/rpc"),
            ("daemon/base/bad.c", '#include "log.h"\n', "start at the root"),
            ("daemon/base/bad.c", '#include "tests/support/check.h"\n', "belongs to no layer"),
            ("daemon/new/bad.c", "", "belongs to no layer"),
            ("daemon/ipc/bad.c", "#include <grpc/grpc.h>\n", "<grpc/grpc.h> belongs in"),
            ("client/bad.c", "#include <grpcpp/channel.h>\n", "belongs in"),
            ("daemon/base/bad.c", "#include <cuda_runtime.h>\n", "belongs in kernels/"),
        ):
            with self.subTest(text):
                status, output = self.run_on({path: text})
                self.assertEqual(status, 1, output)
                self.assertIn(f"{path}: ", output)
                self.assertIn(want, output)

    def test_cycles(self):
        status, output = self.run_on({"daemon/ipc/a.h": '#include "daemon/ipc/b.h"\n',
                                      "daemon/ipc/b.h": '#include "daemon/ipc/a.h"\n'})
        self.assertEqual(status, 1)
        self.assertIn("cycle of headers", output)
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, {"daemon/base/a.c": '#include "daemon/ipc/b.h"\n',
                          "daemon/ipc/b.h": '#include "daemon/base/c.h"\n'})
            status, output = script("layers.py", "--root", folder, "base:ipc", "ipc:base")
            self.assertEqual(status, 1)
            self.assertIn("cycle of layers", output)

    def test_the_real_tree(self):
        """An edge planted in a copy of our own tree, with our own LAYERS."""
        root = os.path.dirname(os.path.dirname(HERE))
        shown = subprocess.run(["make", "-n", "lint-layers"], cwd=root, capture_output=True, text=True,
                               check=True).stdout
        layers = shown[shown.index("layers.py") + len("layers.py"):].split()
        status, output = script("layers.py", "--root", root, *layers)
        self.assertEqual(status, 0, output)
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, {"daemon/engine/x.c": '#include "daemon/core/core.h"\n'})
            status, output = script("layers.py", "--root", folder, *layers)
        self.assertEqual(status, 1)
        self.assertIn("engine may not include core", output)


class Sizes(unittest.TestCase):
    def run_on(self, name, lines, exceptions=""):
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, {name: "\n" * lines, "exceptions.txt": exceptions})
            return script("sizes.py", "--exceptions", os.path.join(folder, "exceptions.txt"),
                          os.path.join(folder, name))

    def test_limits(self):
        for name, limit in (("a.c", 500), ("a.h", 250), ("Makefile", 300), ("a.cuh", 250)):
            self.assertEqual(self.run_on(name, limit)[0], 0)
            status, output = self.run_on(name, limit + 1)
            self.assertEqual(status, 1)
            self.assertIn(f"has {limit + 1} lines, at most {limit}", output)

    def test_exceptions_need_a_reason(self):
        self.assertEqual(self.run_on("a.c", 501, "# note\n\nsize */a.c one table\n")[0], 0)
        self.assertEqual(self.run_on("a.c", 501, "size */b.c one table\n")[0], 1)
        for bad in ("size */a.c\n", "length */a.c because\n"):
            status, output = self.run_on("a.c", 1, bad)
            self.assertNotEqual(status, 0)
            self.assertIn("must be CHECK WHERE REASON", output)


class Tidy(unittest.TestCase):
    def run_on(self, text, exceptions=""):
        with tempfile.TemporaryDirectory() as folder:
            tree(folder, {"a.c": text, "exceptions.txt": exceptions})
            with open(os.path.join(HERE, "../../.clang-tidy"), encoding="utf-8") as f:
                tree(folder, {".clang-tidy": f.read()})
            return script("tidy.py", "--exceptions", os.path.join(folder, "exceptions.txt"),
                          os.path.join(folder, "a.c"), "--", "-std=c11")

    def test_clean(self):
        status, output = self.run_on("int twice(int x);\nint twice(int x)\n{\n    return 2 * x;\n}\n")
        self.assertEqual(status, 0, output)

    def test_planted(self):
        long = "int f(int x)\n{\n" + "    x++;\n" * 71 + "    return x;\n}\n"
        wide = "int f(int a, int b, int c, int d, int e, int g, int h)\n{\n    return a+b+c+d+e+g+h;\n}\n"
        deep = ("int f(int x)\n{\n" + "if (x > 0) {\n" * 5 + "x--;\n" + "}\n" * 5 + "return x;\n}\n")
        null = "int f(void)\n{\n    int *p = 0;\n    return *p;\n}\n"
        for text, want in ((long, "73 lines"), (wide, "7 parameters"), (deep, "nesting level 5"),
                           (null, "Dereference of null")):
            with self.subTest(want):
                status, output = self.run_on(text)
                self.assertEqual(status, 1)
                self.assertIn(want, output)

    def test_exception_excuses_one_function(self):
        wide = "int {0}(int a, int b, int c, int d, int e, int g, int h)\n{{\n    return a+b+c+d+e+g+h;\n}}\n"
        self.assertEqual(self.run_on(wide.format("f"), "function-size *a.c:f it mirrors\n")[0], 0)
        status, output = self.run_on(wide.format("f") + wide.format("g"),
                                     "function-size *a.c:f it mirrors\n")
        self.assertEqual(status, 1)
        self.assertIn("'g'", output)

    def test_exception_excuses_one_check(self):
        null = "int f(void)\n{\n    int *p = 0;\n    return *p;\n}\n"
        line = "tidy *a.c:{0} the model is wrong here\n"
        self.assertEqual(self.run_on(null, line.format("clang-analyzer-core.NullDereference"))[0], 0)
        self.assertEqual(self.run_on(null, line.format("bugprone-infinite-loop"))[0], 1)

    def test_a_file_that_does_not_compile_fails(self):
        self.assertEqual(self.run_on("int f(\n")[0], 1)


if __name__ == "__main__":
    unittest.main()
