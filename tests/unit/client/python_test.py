#!/usr/bin/env python3
"""client/python/epd.py against a real daemon: two ranks, fp32, dispatch and combine, exact sums.
EPD_BIN_DIR (default build/bin), EPD_LIB_DIR (default lib beside it). Exit 77: binaries missing."""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../../..")
BIN = os.environ.get("EPD_BIN_DIR", os.path.join(ROOT, "build/bin"))
LIB = os.environ.get("EPD_LIB_DIR", os.path.join(BIN, "../lib"))
for need in (f"{BIN}/epd", f"{BIN}/epd-engine", f"{LIB}/libepd.so", f"{LIB}/libepd-rpc.so"):
    if not os.path.exists(need):
        print(f"skip: {need} does not exist")
        sys.exit(77)
os.environ["EPD_LIB"] = f"{LIB}/libepd.so"
sys.path.insert(0, os.path.join(ROOT, "client/python"))
import epd  # noqa: E402

R, E, B, K, H = 2, 4, 8, 2, 16
L = E // R
STEPS = 5


def fill(buffer, kind, values):
    view = buffer.view.cast(kind)
    for i, value in enumerate(values):
        view[i] = value


class Seat:
    """One rank: its session, buffers and ops. Experts multiply by (1 + expert)."""

    def __init__(self, socket, rank):
        self.rank = rank
        self.session = epd.Session(socket=socket, name=f"rank{rank}", wait_daemon=True, timeout=20)
        shape = dict(ranks=R, experts=E, max_tokens=B, topk=K, hidden=H, dtype=epd.FP32)
        if rank == 0:
            self.group = self.session.group_create("python", **shape)
        else:
            self.group = self.session.group_open("python")
        assert (self.group.name, self.group.hidden) == ("python", H)
        self.lease = self.session.lease(self.group, rank)
        assert (self.lease.rank, self.lease.epoch) == (rank, 0)
        sizes = dict(x=B * H * 4, ids=B * K * 8, weights=B * K * 4, recv=L * R * B * H * 4,
                     rows=L * R * B * H * 4, counts=L * 4, ranges=L * R * 8, src=L * R * B * 4,
                     out=B * H * 4)
        self.buf = {name: self.session.buffer(self.lease.device, size)
                    for name, size in sizes.items()}
        b = self.buf
        self.dispatch = self.lease.dispatch_bind(x=b["x"], ids=b["ids"], recv=b["recv"],
                                                 counts=b["counts"], ranges=b["ranges"],
                                                 src=b["src"])
        self.combine = self.lease.combine_bind(rows=b["rows"], weights=b["weights"], out=b["out"])

    def tokens(self, step):
        return (3 * step + 5 * self.rank) % (B + 1)

    def x(self, step, t, h):
        return float((step + 3 * self.rank + 7 * t + h) % 64)

    def ids(self, step, t):
        first = (step + t + self.rank) % E
        return [first, -1 if t % 3 == 2 else (first + 1 + t) % E]

    def send(self, step):
        n = self.tokens(step)
        fill(self.buf["x"], "f", [self.x(step, t, h) for t in range(n) for h in range(H)])
        fill(self.buf["ids"], "q", [i for t in range(n) for i in self.ids(step, t)])
        fill(self.buf["weights"], "f", [0.5, 0.25] * n)
        self.ticket = self.lease.dispatch(self.dispatch, b=n, tag=step)
        assert self.ticket.epoch == step

    def compute(self, step, seats):
        result = self.lease.wait(timeout=10, ticket=self.ticket).check()
        assert (result.epoch, result.tag) == (step, step), result
        counts = self.buf["counts"].view.cast("i")
        recv, rows = self.buf["recv"].view.cast("f"), self.buf["rows"].view.cast("f")
        for le in range(L):
            expert = self.rank * L + le
            expected = [(s, t) for s in seats for t in range(s.tokens(step))
                        if expert in s.ids(step, t)]
            assert counts[le] == len(expected), (step, expert, counts[le], len(expected))
            for i, (seat, t) in enumerate(expected):
                at = (le * R * B + i) * H
                for h in range(H):
                    assert recv[at + h] == seat.x(step, t, h), (step, expert, i, h)
                    rows[at + h] = recv[at + h] * (1 + expert)

    def gather(self, step):
        self.ticket = self.lease.combine(self.combine, b=self.tokens(step), epoch=step, tag=step)

    def check(self, step):
        self.lease.wait(timeout=10, ticket=self.ticket).check()
        out = self.buf["out"].view.cast("f")
        for t in range(self.tokens(step)):
            factor = sum(w * (1 + e) for w, e in zip([0.5, 0.25], self.ids(step, t)) if e >= 0)
            for h in range(H):
                assert out[t * H + h] == factor * self.x(step, t, h), (step, t, h)


def errors(seat):
    def fails(status, function, *arguments, **fields):
        try:
            function(*arguments, **fields)
        except epd.Error as error:
            assert error.status == status, error
            return str(error)
        raise AssertionError(f"{status} expected")

    fails("ENOENT", seat.session.group_open, "no-such-group")
    fails("EBUSY", seat.session.lease, seat.group, 1 - seat.rank)
    fails("EINVAL", seat.lease.dispatch, seat.dispatch, b=B + 1)
    text = fails("EINVAL", seat.lease.dispatch_bind, x=seat.buf["x"])
    assert "ids" in text or "recv" in text, text
    assert seat.lease.poll() is None


def main():
    directory = tempfile.mkdtemp(prefix="epd-python.")
    socket = f"{directory}/epd.sock"
    with open(f"{directory}/log", "w+") as log:
        daemon = subprocess.Popen([f"{BIN}/epd", "--backend", "host", "--socket", socket],
                                  stderr=log)
        try:
            seats = [Seat(socket, rank) for rank in range(R)]
            for step in range(STEPS):
                for phase in ("send", "compute", "gather", "check"):
                    for seat in seats:
                        arguments = (step, seats) if phase == "compute" else (step,)
                        getattr(seat, phase)(*arguments)
            print(f"ok - {STEPS} round trips of {R} ranks")
            errors(seats[0])
            print("ok - errors")
            for seat in seats:
                seat.dispatch.unbind()
                seat.buf["ids"].free()
                seat.session.close()
            print("ok - close")
            seats = []
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
        finally:
            daemon.terminate()
            code = daemon.wait(timeout=20)
    assert code == 0, f"epd left with {code}"
    subprocess.run(["rm", "-rf", directory], check=True)


main()
