"""epd: a thin binding of libepd.so (ctypes, standard library only).

    import epd

    with epd.Session() as session:
        group = session.group_create("moe", ranks=2, experts=4, max_tokens=8, topk=2, hidden=16,
                                     dtype=epd.FP32)
        lease = session.lease(group, rank=0)
        x = session.buffer(lease.device, 8 * 16 * 4)
        ...
        dispatch = lease.dispatch_bind(x=x, ids=ids, recv=recv, counts=counts)
        ticket = lease.dispatch(dispatch, b=3)
        result = lease.wait(timeout=5.0)

Shapes (R ranks, L = experts / R local experts, B max_tokens, b tokens this time, K topk, H hidden):

    dispatch  x [rows, H] dtype, ids [rows, K] int64 (or int32) global expert ids, -1 = dropped,
              weights [rows, K] float32 (rank-major only)
           -> recv [sets, L, R*B, H] expert-major or [sets, R, B, H] rank-major
              counts [sets, L] or [sets, R] int32
              ranges [sets, L, R, 2] int32 (begin, count), expert-major, optional
              src [sets, receive rows] int32, token of the source rank, optional
              recv_ids [sets, R, B, K] int32 and recv_weights [sets, R, B, K] float32, rank-major
    combine   rows as recv, weights [rows, K] float32 (expert-major) -> out [rows, H] dtype

An array is a Buffer, or Array(buffer, offset, bytes, stride). Buffer.view is a writable memoryview
of bytes; cast it (`buffer.view.cast("f")`) or give it to numpy.frombuffer. A view must not be used
after the buffer is freed or the session closed.

Threads: a Session may be used from several; a Lease and its ops from one at a time. After a fork
open a new Session in the child. Failed calls raise Error (status, scope, message); a failed op does
not: look at Result.status, or call Result.check().
"""

import ctypes
import os
from ctypes import (CDLL, POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_int64,
                    c_size_t, c_uint8, c_uint32, c_uint64, c_void_p, sizeof)

BF16, FP16, FP32 = 1, 2, 3
LL, HT = 1, 2
EXPERT_MAJOR, RANK_MAJOR, FLAT = 1, 2, 3
INT32, INT64 = 1, 2
B_INDIRECT, NOTIFY = 1, 2
_EAGAIN = -16
SCOPES = ("none", "request", "epoch", "group", "session", "device", "daemon")


class _Error(Structure):
    _fields_ = [("status", c_int), ("message", c_char * 256)]


class _OpenOptions(Structure):
    _fields_ = [("size", c_uint32), ("socket", c_char_p), ("name", c_char_p),
                ("timeout_ns", c_int64), ("wait_daemon", c_uint32), ("reserved", c_uint32)]


class _GroupConfig(Structure):
    _fields_ = [("size", c_uint32), ("name", c_char_p), ("ranks", c_uint32),
                ("experts", c_uint32), ("max_tokens", c_uint32), ("topk", c_uint32),
                ("hidden", c_uint32), ("dtype", c_uint32), ("mode", c_uint32),
                ("layout", c_uint32), ("timeout_ms", c_uint32), ("first_timeout_ms", c_uint32),
                ("ephemeral", c_uint32), ("allow_absent", c_uint32),
                ("placement", POINTER(c_uint32)), ("key", POINTER(c_uint8))]


class Group(Structure):
    """What a group is: id, name, its shape, generation, leased seats, device[rank]."""
    _fields_ = [("size", c_uint32), ("id", c_uint64), ("_name", c_char * 64),
                ("ranks", c_uint32), ("experts", c_uint32), ("max_tokens", c_uint32),
                ("topk", c_uint32), ("hidden", c_uint32), ("dtype", c_uint32),
                ("mode", c_uint32), ("layout", c_uint32), ("timeout_ms", c_uint32),
                ("first_timeout_ms", c_uint32), ("generation", c_uint32), ("leased", c_uint32),
                ("device", c_uint8 * 64)]

    @property
    def name(self):
        return self._name.decode()


class _LeaseOptions(Structure):
    _fields_ = [("size", c_uint32), ("ring_depth", c_uint32), ("takeover", c_uint32),
                ("reserved", c_uint32), ("key", POINTER(c_uint8))]


class _Array(Structure):
    _fields_ = [("buffer", c_void_p), ("offset", c_uint64), ("bytes", c_uint64),
                ("stride", c_uint64)]


class _DispatchConfig(Structure):
    arrays = ("x", "ids", "weights", "recv", "counts", "ranges", "src", "recv_ids",
              "recv_weights", "control")
    _fields_ = [("size", c_uint32), ("ids_type", c_uint32), ("sets", c_uint32),
                ("reserved", c_uint32)] + [(name, _Array) for name in arrays]


class _CombineConfig(Structure):
    arrays = ("rows", "weights", "out", "control")
    _fields_ = [("size", c_uint32), ("sets", c_uint32)] + [(name, _Array) for name in arrays]


class _Submit(Structure):
    _fields_ = [("size", c_uint32), ("b", c_uint32), ("tag", c_uint32), ("flags", c_uint32),
                ("in_row", c_uint64), ("out_row", c_uint64), ("set", c_uint64),
                ("b_offset", c_uint64), ("notify_offset", c_uint64), ("epoch", c_uint64)]


class Ticket(Structure):
    """ticket: number of the submission on its lease; epoch: pass it to combine or release."""
    _fields_ = [("ticket", c_uint64), ("epoch", c_uint64)]


class Result(Structure):
    """What became of a submission; status 0 is success."""
    _fields_ = [("ticket", c_uint64), ("epoch", c_uint64), ("released_epoch", c_uint64),
                ("value", c_uint64), ("status", c_int), ("tag", c_uint32), ("kind", c_uint32),
                ("phase", c_uint32), ("field", c_uint32), ("rank", c_int32),
                ("other_rank", c_int32), ("generation", c_uint32), ("rows", c_uint32),
                ("wait_us", c_uint32), ("work_us", c_uint32), ("epoch_consumed", c_uint32),
                ("reserved", c_uint32)]

    def __str__(self):
        buf = ctypes.create_string_buffer(256)
        return _lib().epd_result_describe(byref(self), buf, sizeof(buf)).decode()

    def check(self):
        """Raise Error unless the op succeeded; returns self."""
        if self.status != 0:
            raise Error(self.status, str(self))
        return self


_FUNCTIONS = {  # name: (result, arguments)
    "epd_version": (c_char_p, []),
    "epd_status_string": (c_char_p, [c_int]),
    "epd_status_describe": (c_char_p, [c_int]),
    "epd_status_scope_of": (c_int, [c_int]),
    "epd_open": (c_int, [POINTER(_OpenOptions), POINTER(c_void_p), POINTER(_Error)]),
    "epd_close": (None, [c_void_p]),
    "epd_session_check": (c_int, [c_void_p]),
    "epd_session_id": (c_uint64, [c_void_p]),
    "epd_group_create": (c_int, [c_void_p, POINTER(_GroupConfig), POINTER(Group),
                                 POINTER(_Error)]),
    "epd_group_open": (c_int, [c_void_p, c_char_p, POINTER(Group), POINTER(_Error)]),
    "epd_group_destroy": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(_Error)]),
    "epd_lease_acquire": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(_LeaseOptions),
                                  POINTER(c_void_p), POINTER(_Error)]),
    "epd_lease_release": (None, [c_void_p]),
    "epd_rearm": (c_int, [c_void_p, POINTER(_Error)]),
    "epd_lease_rank": (c_uint32, [c_void_p]),
    "epd_lease_device": (c_uint32, [c_void_p]),
    "epd_lease_generation": (c_uint32, [c_void_p]),
    "epd_lease_epoch": (c_uint64, [c_void_p]),
    "epd_buffer_alloc": (c_int, [c_void_p, c_uint32, c_uint64, POINTER(c_void_p),
                                 POINTER(_Error)]),
    "epd_buffer_import": (c_int, [c_void_p, c_uint32, c_int, c_uint64, POINTER(c_void_p),
                                  POINTER(_Error)]),
    "epd_buffer_free": (c_int, [c_void_p, POINTER(_Error)]),
    "epd_buffer_ptr": (c_void_p, [c_void_p]),
    "epd_dispatch_bind": (c_int, [c_void_p, POINTER(_DispatchConfig), POINTER(c_void_p),
                                  POINTER(_Error)]),
    "epd_combine_bind": (c_int, [c_void_p, POINTER(_CombineConfig), POINTER(c_void_p),
                                 POINTER(_Error)]),
    "epd_op_unbind": (c_int, [c_void_p, POINTER(_Error)]),
    "epd_dispatch": (c_int, [c_void_p, POINTER(_Submit), POINTER(Ticket)]),
    "epd_combine": (c_int, [c_void_p, POINTER(_Submit), POINTER(Ticket)]),
    "epd_release": (c_int, [c_void_p, c_uint64, POINTER(Ticket)]),
    "epd_poll": (c_int, [c_void_p, POINTER(Result)]),
    "epd_wait": (c_int, [c_void_p, c_int64, POINTER(Result)]),
    "epd_wait_ticket": (c_int, [c_void_p, c_uint64, c_int64, POINTER(Result)]),
    "epd_result_describe": (c_char_p, [POINTER(Result), c_char_p, c_size_t]),
}
_loaded = None


def _lib():
    """libepd.so: EPD_LIB, else beside or above this file, else the loader's search."""
    global _loaded
    if _loaded is not None:
        return _loaded
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.environ.get("EPD_LIB", "libepd.so")
    if "EPD_LIB" not in os.environ:
        for up in (here, os.path.join(here, "..")):
            if os.path.exists(os.path.join(up, "libepd.so")):
                path = os.path.join(up, "libepd.so")
                break
    lib = CDLL(path)  # RTLD_LOCAL
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    _loaded = lib
    return lib


class Error(Exception):
    """A call failed. status: "ENOENT", code: -2, scope: what to rebuild ("request", "group", ...)."""

    def __init__(self, code, message=""):
        lib = _lib()
        self.code = code
        self.status = lib.epd_status_string(code).decode()
        self.scope = SCOPES[lib.epd_status_scope_of(code)]
        super().__init__(f"{self.status}: {message or lib.epd_status_describe(code).decode()}")


def _call(function, *arguments):
    """A control call: err is its last argument."""
    err = _Error()
    code = getattr(_lib(), function)(*arguments, byref(err))
    if code != 0:
        raise Error(code, err.message.decode(errors="replace") if err.status else "")


def _key(key):
    if key is None:
        return None
    if len(key) != 16:
        raise ValueError("key must be 16 bytes")
    return (c_uint8 * 16)(*key)


def _ns(timeout):
    return -1 if timeout is None else int(timeout * 1e9)


def version():
    return _lib().epd_version().decode()


class Array:
    """Part of a buffer: bytes 0 is up to its end, stride 0 is dense."""

    def __init__(self, buffer, offset=0, bytes=0, stride=0):
        self.buffer, self.offset, self.bytes, self.stride = buffer, offset, bytes, stride


class _Handle:
    """A handle of the library; `_h` is None once it is gone."""
    _h = None

    def _live(self):
        if self._h is None:
            raise ValueError(f"{type(self).__name__} is closed")
        return self._h


class Session(_Handle):
    def __init__(self, socket=None, name=None, timeout=0, wait_daemon=False):
        options = _OpenOptions(size=sizeof(_OpenOptions), wait_daemon=wait_daemon,
                               socket=os.fsencode(socket) if socket else None,
                               name=name.encode() if name else None, timeout_ns=_ns(timeout))
        handle = c_void_p()
        _call("epd_open", byref(options), byref(handle))
        self._h = handle.value
        self._children = []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        """Everything of the session dies: leases, ops, buffers and their views."""
        if self._h is None:
            return
        for child in self._children:
            child._die()
        _lib().epd_close(self._h)
        self._h = None

    @property
    def id(self):
        return _lib().epd_session_id(self._live())

    def check(self):
        code = _lib().epd_session_check(self._live())
        if code != 0:
            raise Error(code)

    def group_create(self, name, ranks, experts, max_tokens, topk, hidden, dtype=BF16, mode=LL,
                     layout=EXPERT_MAJOR, timeout_ms=0, first_timeout_ms=0, ephemeral=False,
                     allow_absent=False, placement=None, key=None):
        if placement is not None and len(placement) != ranks:
            raise ValueError("placement must name one device for each rank")
        config = _GroupConfig(
            size=sizeof(_GroupConfig), name=name.encode(), ranks=ranks, experts=experts,
            max_tokens=max_tokens, topk=topk, hidden=hidden, dtype=dtype, mode=mode,
            layout=layout, timeout_ms=timeout_ms, first_timeout_ms=first_timeout_ms,
            ephemeral=ephemeral, allow_absent=allow_absent,
            placement=(c_uint32 * ranks)(*placement) if placement is not None else None,
            key=_key(key))
        group = Group(size=sizeof(Group))
        _call("epd_group_create", self._live(), byref(config), byref(group))
        return group

    def group_open(self, name):
        group = Group(size=sizeof(Group))
        _call("epd_group_open", self._live(), name.encode(), byref(group))
        return group

    def group_destroy(self, group, force=False):
        _call("epd_group_destroy", self._live(), getattr(group, "id", group), force)

    def lease(self, group, rank, ring_depth=0, takeover=False, key=None):
        options = _LeaseOptions(size=sizeof(_LeaseOptions), ring_depth=ring_depth,
                                takeover=takeover, key=_key(key))
        handle = c_void_p()
        _call("epd_lease_acquire", self._live(), getattr(group, "id", group), rank,
              byref(options), byref(handle))
        return self._add(Lease(self, handle.value))

    def buffer(self, device, nbytes):
        """nbytes of zeroed memory on the device."""
        handle = c_void_p()
        _call("epd_buffer_alloc", self._live(), device, nbytes, byref(handle))
        return self._add(Buffer(self, handle.value, nbytes))

    def buffer_import(self, device, memfd, nbytes):
        """Lend a sealed memfd (inputs only)."""
        handle = c_void_p()
        _call("epd_buffer_import", self._live(), device, memfd, nbytes, byref(handle))
        return self._add(Buffer(self, handle.value, nbytes))

    def _add(self, child):
        self._children = [c for c in self._children if c._h is not None]
        self._children.append(child)
        return child


class Buffer(_Handle):
    def __init__(self, session, handle, nbytes):
        self._session, self._h, self.nbytes = session, handle, nbytes
        address = _lib().epd_buffer_ptr(handle)
        self.address = address
        self.view = memoryview((c_uint8 * nbytes).from_address(address)).cast("B")

    def _die(self):
        self._h = None

    def free(self):
        if self._h is None:
            return
        _call("epd_buffer_free", self._h)
        self._die()


class Op(_Handle):
    def __init__(self, handle, arrays):
        self._h, self._arrays = handle, arrays

    def _die(self):
        self._h = None

    def unbind(self):
        if self._h is None:
            return
        _call("epd_op_unbind", self._h)
        self._die()


class Lease(_Handle):
    def __init__(self, session, handle):
        self._session, self._h, self._ops = session, handle, []
        self.rank = _lib().epd_lease_rank(handle)
        self.device = _lib().epd_lease_device(handle)

    def _die(self):
        for op in self._ops:
            op._die()
        self._h = None

    def release(self):
        if self._h is None:
            return
        handle = self._h
        self._die()
        _lib().epd_lease_release(handle)

    @property
    def generation(self):
        return _lib().epd_lease_generation(self._live())

    @property
    def epoch(self):
        return _lib().epd_lease_epoch(self._live())

    def rearm(self):
        """After a result of scope "group": start again at epoch 0 of the new generation."""
        _call("epd_rearm", self._live())

    def _bind(self, function, config, arrays):
        for name, value in arrays.items():
            if name not in config.arrays:
                raise TypeError(f"no array is named {name!r}")
            if value is None:
                continue
            a = value if isinstance(value, Array) else Array(value)
            setattr(config, name, _Array(a.buffer._live(), a.offset, a.bytes, a.stride))
        handle = c_void_p()
        _call(function, self._live(), byref(config), byref(handle))
        op = Op(handle.value, arrays)
        self._ops = [o for o in self._ops if o._h is not None] + [op]
        return op

    def dispatch_bind(self, ids_type=INT64, sets=1, **arrays):
        """arrays: x, ids, recv, counts and more; see the module."""
        config = _DispatchConfig(size=sizeof(_DispatchConfig), ids_type=ids_type, sets=sets)
        return self._bind("epd_dispatch_bind", config, arrays)

    def combine_bind(self, sets=1, **arrays):
        """arrays: rows, weights, out, control."""
        config = _CombineConfig(size=sizeof(_CombineConfig), sets=sets)
        return self._bind("epd_combine_bind", config, arrays)

    def _submit(self, function, op, fields):
        submit = _Submit(size=sizeof(_Submit), **fields)
        ticket = Ticket()
        self._live()
        code = getattr(_lib(), function)(op._live(), byref(submit), byref(ticket))
        if code != 0:
            raise Error(code)
        return ticket

    def dispatch(self, op, b, **fields):
        """Submit b tokens; fields: tag, in_row, set, flags, b_offset, notify_offset."""
        return self._submit("epd_dispatch", op, dict(fields, b=b))

    def combine(self, op, b, epoch, **fields):
        """Submit the combine of dispatch `epoch`; fields also: out_row."""
        return self._submit("epd_combine", op, dict(fields, b=b, epoch=epoch))

    def release_set(self, epoch):
        """The receive set of dispatch `epoch` is free, without a combine."""
        ticket = Ticket()
        code = _lib().epd_release(self._live(), epoch, byref(ticket))
        if code != 0:
            raise Error(code)
        return ticket

    def poll(self):
        """The next Result, or None when none is ready."""
        result = Result()
        code = _lib().epd_poll(self._live(), byref(result))
        if code == 0:
            return result
        if code == _EAGAIN:
            return None
        raise Error(code)

    def wait(self, timeout=None, ticket=None):
        """The next Result, at most `timeout` seconds. With a ticket: consume all results up to its,
        and return the first that failed, else its own. Raises Error ETIMEDOUT."""
        result = Result()
        if ticket is None:
            code = _lib().epd_wait(self._live(), _ns(timeout), byref(result))
        else:
            number = getattr(ticket, "ticket", ticket)
            code = _lib().epd_wait_ticket(self._live(), number, _ns(timeout), byref(result))
        if code != 0:
            raise Error(code)
        return result
