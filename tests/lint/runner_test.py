#!/usr/bin/env python3
"""tests/support/run-tests.py: verdicts, counts, deadlines, leftovers."""

import os
import subprocess
import sys
import tempfile
import time
import unittest

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support/run-tests.py")
CMOCKA = """#!/bin/sh
cat <<TEXT
[==========] Running {0} test(s).
[ RUN      ] a
[       OK ] a
[==========] {1} test(s) run.
[  PASSED  ] {2} test(s).
TEXT
"""
BAD = """cat <<TEXT
[  FAILED  ] 2 test(s), listed below:
[  FAILED  ] a
[  FAILED  ] b

 2 FAILED TEST(S)
TEXT
exit 2
"""


class Runner(unittest.TestCase):
    def run_on(self, files, *args, env=None):
        """Scripts tests/x_test.sh; a .c source has its text as program in build/tests."""
        with tempfile.TemporaryDirectory() as folder:
            sources = []
            for name, text in files.items():
                sources.append(os.path.join(folder, "tests", name))
                paths = [sources[-1]]
                if name.endswith(".c"):
                    paths.append(os.path.join(folder, "build/tests", name[:-2]))
                for path in paths:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "w", encoding="utf-8") as f:
                        f.write(text)
                    os.chmod(path, 0o755)
            done = subprocess.run(
                [sys.executable, RUNNER, "--build", os.path.join(folder, "build"), *args, *sources],
                capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
            lines = done.stdout.splitlines()
            return done.returncode, lines[-1] if lines else "", done.stdout

    def test_all_pass(self):
        status, last, output = self.run_on({"unit/a_test.sh": "exit 0", "unit/b_test.py": "pass",
                                            "unit/c_test.c": CMOCKA.format(3, 3, 3)})
        self.assertEqual((status, last), (0, "5 passed, 0 failed"), output)

    def test_failures_show_their_output(self):
        status, last, output = self.run_on({"a_test.sh": "echo why; exit 3", "b_test.sh": "exit 0"})
        self.assertEqual((status, last), (1, "1 passed, 1 failed"))
        self.assertIn("why\n", output)
        self.assertIn("exit status 3", output)

    def test_cmocka_failures_are_counted(self):
        status, last, _ = self.run_on({"a_test.c": CMOCKA.format(5, 5, 3) + BAD})
        self.assertEqual((status, last), (1, "3 passed, 2 failed"))

    def test_a_program_that_stops_in_the_middle_fails(self):
        early = CMOCKA.format(5, 5, 5).replace("[==========] 5", "lost").replace("[  PASSED", "lost")
        status, last, _ = self.run_on({"a_test.c": early})
        self.assertEqual((status, last), (1, "0 passed, 1 failed"))

    def test_signals(self):
        status, _, output = self.run_on({"a_test.sh": "kill -SEGV $$"})
        self.assertEqual(status, 1)
        self.assertIn("killed by signal 11", output)

    def test_skips_say_why(self):
        status, last, output = self.run_on({"a_test.sh": "echo skip: no wings; exit 77",
                                            "b_test.sh": "exit 0"})
        self.assertEqual((status, last), (0, "1 passed, 0 failed, 1 skipped"))
        self.assertIn("no wings", output)

    def test_nothing_ran_is_a_failure(self):
        self.assertEqual(self.run_on({})[:2], (1, "0 passed, 0 failed"))
        self.assertEqual(self.run_on({"a_test.sh": "exit 0"}, "--filter", "zebra")[0], 1)
        self.assertEqual(self.run_on({"a_test.sh": "exit 77"})[0], 1)

    def test_filter(self):
        files = {"unit/a_test.sh": "exit 0", "fault/b_test.sh": "exit 1"}
        self.assertEqual(self.run_on(files, "--filter", "unit/")[:2], (0, "1 passed, 0 failed"))

    def test_deadline_kills_the_group(self):
        with tempfile.NamedTemporaryFile() as pids:
            hang = f"# test-timeout: 1\nsleep 300 &\necho $! >{pids.name}\nwait\n"
            start = time.monotonic()
            status, _, output = self.run_on({"a_test.sh": hang}, env={"EPD_TEST_SLOW": "1"})
            self.assertLess(time.monotonic() - start, 30)
            self.assertEqual(status, 1)
            self.assertIn("killed after its deadline of 1 s", output)
            self.assert_gone(int(pids.read()))

    def test_leftovers_are_killed(self):
        with tempfile.NamedTemporaryFile() as pids:
            status, _, _ = self.run_on({"a_test.sh": f"sleep 300 &\necho $! >{pids.name}\n"})
            self.assertEqual(status, 0)
            self.assert_gone(int(pids.read()))

    def assert_gone(self, pid):
        for _ in range(100):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                    if f.read().rsplit(")", 1)[1].split()[0] == "Z":
                        return
            except FileNotFoundError:
                return
            time.sleep(0.05)
        self.fail(f"process {pid} is still there")

    def test_environment(self):
        status, _, output = self.run_on(
            {"a_test.sh": 'test -z "${EPD_SOCKET-}${NOTIFY_SOCKET-}" && test "$EPD_TEST_SEED" = 3 '
                          '&& test "$LC_ALL" = C && ! read -r line'},
            env={"EPD_SOCKET": "/x", "NOTIFY_SOCKET": "/x", "EPD_TEST_SEED": "3"})
        self.assertEqual(status, 0, output)


if __name__ == "__main__":
    unittest.main()
