# test-timeout: 180
"""`epdctl replay --dump`, checked by somebody who never saw our code: plain Python, exact rational
arithmetic, only the contract of the command (token values, experts, order of sums, file format)."""
import ast
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from fractions import Fraction

BIN = os.environ.get("EPD_BIN_DIR", "build/bin")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACE = os.path.join(ROOT, "tests/data/dsv2lite-translation-small.csv")
SLOW = float(os.environ.get("EPD_TEST_SLOW", "1"))


def read_npy(path):
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", path
    (n,) = struct.unpack("<H", data[8:10])
    head = ast.literal_eval(data[10:10 + n].decode("latin1"))
    assert (10 + n) % 16 == 0 and not head["fortran_order"], path
    code = {"<i4": "i", "<u2": "H", "<f4": "f", "<f2": "H"}[head["descr"]]
    count = 1
    for d in head["shape"]:
        count *= d
    return head["shape"], list(struct.unpack("<%d%s" % (count, code), data[10 + n:]))


def read_trace(path):
    layers, experts, topk = {}, 0, 0
    for line in open(path):
        if line.startswith("#"):
            for word in line.split():
                if word.startswith("experts="):
                    experts = int(word[8:])
                if word.startswith("topk="):
                    topk = int(word[5:])
            continue
        if line.startswith("layer"):
            continue
        v = [int(x) for x in line.split(",")]
        layers.setdefault(v[0], []).append((v[3:3 + topk], v[3 + topk:3 + 2 * topk]))
    return layers, experts, topk


def f32(x):
    """Round an exact value to fp32, nearest even."""
    return round_to(Fraction(x), 24, -149)


def round_to(x, bits, min_exp):
    if x == 0:
        return Fraction(0)
    sign, x = (-1, -x) if x < 0 else (1, x)
    e = x.numerator.bit_length() - x.denominator.bit_length()
    if Fraction(2) ** e > x:
        e -= 1
    ulp = Fraction(2) ** max(e - bits + 1, min_exp)
    q = x / ulp
    n, rest = divmod(q.numerator, q.denominator)
    twice = 2 * rest
    if twice > q.denominator or (twice == q.denominator and n % 2 == 1):
        n += 1
    return sign * n * ulp


class Dtype:
    def __init__(self, name):
        self.name = name
        self.round = {"bf16": lambda x: round_to(x, 8, -133), "fp16": lambda x: round_to(x, 11, -24),
                      "fp32": f32}[name]

    def bits(self, x):
        """The stored form of an exactly representable value, as the dump shows it."""
        if self.name == "fp16":
            return struct.unpack("<H", struct.pack("<e", float(x)))[0]
        raw = struct.unpack("<I", struct.pack("<f", float(x)))[0]
        return raw >> 16 if self.name == "bf16" else float(x)


def token(layer, g, h):
    v = (31 * g + 7 * h + 13 * layer + (g // 257) * h * h) % 257 - 128
    return Fraction(v, 128)


def expert(e, experts, x, dtype):
    f = f32(1 + f32(Fraction(e, experts)))
    return dtype.round(f32(x * f))


class Case:
    def __init__(self, layout, dtype, ranks, batch, hidden):
        self.layout, self.dtype = layout, Dtype(dtype)
        self.R, self.B, self.H = ranks, batch, hidden


def check_step(case, trace, layer, step, folder):
    layers, E, K = trace
    R, B, H, d = case.R, case.B, case.H, case.dtype
    L = E // R
    rows = layers[layer][step * R * B:(step + 1) * R * B]
    per_rank = [rows[r * B:(r + 1) * B] for r in range(R)]

    def get(rank, name):
        return read_npy(os.path.join(folder, "L%d-S%d-R%d-%s.npy" % (layer, step, rank, name)))

    def x(rank, t):
        g = step * R * B + rank * B + t
        return [token(layer, g, h) for h in range(H)]

    for me in range(R):
        want_src, want_recv, counts, want_ids, want_w = [], [], [], [], []
        if case.layout == "expert":
            for le in range(L):
                per_source = [0] * R
                for s in range(R):
                    for t, (ids, _) in enumerate(per_rank[s]):
                        if me * L + le in ids:
                            per_source[s] += 1
                            want_src += [s, t]
                            want_recv += [d.bits(v) for v in x(s, t)]
                counts += per_source
        else:
            for s in range(R):
                n = 0
                for t, (ids, ws) in enumerate(per_rank[s]):
                    here = [e // L == me for e in ids]
                    if any(here):
                        n += 1
                        want_src += [s, t]
                        want_recv += [d.bits(v) for v in x(s, t)]
                        want_ids += [e - me * L if h else -1 for e, h in zip(ids, here)]
                        want_w += [float(w_of(w)) if h else 0.0
                                   for w, h in zip(ws, here)]
                counts.append(n)
        n_rows = len(want_src) // 2
        assert get(me, "counts") == (((L, R) if case.layout == "expert" else (R,)), counts)
        assert get(me, "src") == ((n_rows, 2), want_src), (layer, step, me, "src")
        shape, recv = get(me, "recv")
        assert shape == (n_rows, H) and recv == want_recv, (layer, step, me, "recv")
        if case.layout == "rank":
            assert get(me, "ids") == ((n_rows, K), want_ids), (layer, step, me, "ids")
            assert get(me, "weights") == ((n_rows, K), want_w), (layer, step, me, "weights")
        want = []
        for t, (ids, ws) in enumerate(per_rank[me]):
            xs = x(me, t)
            for h in range(H):
                want.append(d.bits(combine(case, ids, ws, xs[h], E, L)))
        shape, got = get(me, "combined")
        assert shape == (len(per_rank[me]), H) and got == want, (layer, step, me, "combined")
    return 2 * R


def w_of(n):
    """(float)n / 10000.0f in fp32, exact value."""
    return f32(Fraction(n, 10000))


def combine(case, ids, ws, x, E, L):
    d = case.dtype
    acc = Fraction(0)
    if case.layout == "expert":
        for e, w in zip(ids, ws):
            acc = f32(w_of(w) * expert(e, E, x, d) + acc)
        return d.round(acc)
    for rank in sorted({e // L for e in ids}):
        s = Fraction(0)
        for e, w in zip(ids, ws):
            if e // L == rank:
                s = f32(w_of(w) * expert(e, E, x, d) + s)
        acc = f32(acc + d.round(s))
    return d.round(acc)


def run_case(case, trace, sock, layers, steps):
    folder = tempfile.mkdtemp(prefix="epd-dump-")
    try:
        cmd = [os.path.join(BIN, "epdctl"), "--socket", sock, "replay", TRACE, "--layers",
               ",".join(map(str, layers)), "--ranks", str(case.R), "--batch", str(case.B),
               "--hidden", str(case.H), "--dtype", case.dtype.name, "--layout", case.layout,
               "--steps", str(steps), "--clients", "2", "--verify", "--dump", folder, "--json"]
        out = subprocess.run(cmd, stdout=subprocess.PIPE, timeout=60 * SLOW)
        assert out.returncode == 0, (cmd, out.stdout)
        ops = 0
        for layer in layers:
            for step in range(steps):
                ops += check_step(case, trace, layer, step, folder)
        assert b'"ops": %d' % ops in out.stdout.replace(b'"ops":%d' % ops, b'"ops": %d' % ops)
        print("ok", case.layout, case.dtype.name, "ops", ops)
    finally:
        shutil.rmtree(folder)


def main():
    if not os.path.exists(os.path.join(BIN, "epd")):
        print("skip: no epd in", BIN)
        return 77
    folder = tempfile.mkdtemp(prefix="epd-t-")
    sock = os.path.join(folder, "s")
    daemon = subprocess.Popen([os.path.join(BIN, "epd"), "--socket", sock, "--devices", "2",
                               "--log-level", "warn"], stderr=subprocess.PIPE)
    try:
        for _ in range(int(200 * SLOW)):
            if subprocess.run([os.path.join(BIN, "epdctl"), "--socket", sock, "health"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
                break
            time.sleep(0.05)
        trace = read_trace(TRACE)
        run_case(Case("expert", "bf16", 4, 8, 16), trace, sock, [1, 8], 2)
        run_case(Case("rank", "bf16", 8, 4, 16), trace, sock, [1], 2)
        run_case(Case("expert", "fp32", 2, 8, 8), trace, sock, [8], 1)
        run_case(Case("rank", "fp16", 4, 4, 16), trace, sock, [8], 1)
    finally:
        daemon.terminate()
        log = daemon.communicate(timeout=30)[1].decode()
        shutil.rmtree(folder, ignore_errors=True)
    assert daemon.returncode == 0, (daemon.returncode, log)
    assert log == "", log
    print("4 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
