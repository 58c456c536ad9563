"""tests/lint/exceptions.txt: one exception a line, `CHECK WHERE REASON...`; # starts a comment.
CHECK is size or header (WHERE: a file), function-size (file:function) or tidy (file:check)."""

import fnmatch

CHECKS = ("size", "header", "function-size", "tidy")


def load(path):
    """[(check, where, reason)]; ValueError names a bad line."""
    found = []
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(None, 2)
            if len(words) < 3 or words[0] not in CHECKS:
                raise ValueError(f"{path}:{number}: must be CHECK WHERE REASON, CHECK one of "
                                 + ", ".join(CHECKS))
            found.append((words[0], words[1], words[2].strip()))
    return found


def excused(exceptions, check, where):
    return any(c == check and fnmatch.fnmatch(where, w) for c, w, _ in exceptions)
