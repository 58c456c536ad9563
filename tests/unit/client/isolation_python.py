"""grpcio and libepd.so in one process: each works before, between and after the other's calls.
Run by isolation_test.sh with EPD_LIB and EPD_SOCKET set."""

import os
import sys
from concurrent import futures

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../client/python"))
import epd  # noqa: E402


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1])


def main():
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), handlers=(Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    echo = channel.unary_unary("/test.Echo/Reverse")

    def call():
        assert echo(b"abc", timeout=5) == b"cba"

    call()
    for _ in range(3):
        with epd.Session(wait_daemon=True, timeout=10) as session:
            call()
            group = session.group_create("python", ranks=1, experts=2, max_tokens=4, topk=1,
                                         hidden=16, dtype=epd.FP32, ephemeral=True)
            lease = session.lease(group, 0)
            call()
            buffer = session.buffer(lease.device, 4096)
            buffer.view[:4] = b"epd!"
            buffer.free()
            lease.release()
        call()
    try:
        epd.Session(socket="/nonexistent/epd.sock", timeout=1)
        raise AssertionError("no daemon, and yet a session")
    except epd.Error as error:
        assert error.status == "EUNREACHABLE", error
    call()
    server.stop(None)
    print("ok - libepd and grpcio in one Python process")


main()
