#!/bin/sh
# libepd in a process that has another gRPC: a program whose grpc_* functions abort, and Python with
# grpcio. Needs a daemon: EPD_BIN_DIR (default build/bin), EPD_LIB_DIR (default lib beside it).
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
bin=${EPD_BIN_DIR:-$root/build/bin}
lib=${EPD_LIB_DIR:-$bin/../lib}
for need in "$bin/epd" "$bin/epd-engine" "$lib/libepd.so" "$lib/libepd-rpc.so"; do
    if [ ! -e "$need" ]; then
        echo "skip: $need does not exist"
        exit 77
    fi
done

for used in $(nm -D --undefined-only "$lib/libepd-rpc.so" | grep -oE '\b(grpc|gpr)_[a-z_0-9]+'); do
    grep -q "^TRAP($used)" "$root/tests/unit/client/isolation_host.c" || {
        echo "libepd-rpc.so uses $used: add TRAP($used) to isolation_host.c"
        exit 1
    }
done

dir=$(mktemp -d /tmp/epd-isolation.XXXXXX)
daemon=
finish() {
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
    rm -rf "$dir"
}
trap finish EXIT
"$bin/epd" --backend host --socket "$dir/epd.sock" 2>"$dir/log" &
daemon=$!

${CC:-cc} -std=c11 -D_GNU_SOURCE -O1 -I"$root" -rdynamic "$root/tests/unit/client/isolation_host.c" \
    -o "$dir/host" -L"$lib" -lepd -Wl,-rpath,"$(cd "$lib" && pwd)"
# An abort here means that libepd-rpc.so was bound to the program's functions.
timeout 60 "$dir/host" "$dir/epd.sock" || { cat "$dir/log"; exit 1; }

python=${EPD_SYSTEM_PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import grpc' 2>/dev/null; then
    echo "ok - Python with grpcio: not installed, not tried"
    exit 0
fi
EPD_LIB="$lib/libepd.so" EPD_SOCKET="$dir/epd.sock" timeout 60 \
    "$python" "$root/tests/unit/client/isolation_python.py" || { cat "$dir/log"; exit 1; }

# The newest grpcio, where pip can bring it; its Python is the one that pip belongs to.
if command -v pip3 >/dev/null && command -v python3 >/dev/null &&
    timeout 60 pip3 install -q --target "$dir/newest" grpcio >/dev/null 2>&1; then
    PYTHONPATH="$dir/newest" EPD_LIB="$lib/libepd.so" EPD_SOCKET="$dir/epd.sock" timeout 60 \
        python3 "$root/tests/unit/client/isolation_python.py" || { cat "$dir/log"; exit 1; }
else
    echo "ok - Python with the newest grpcio: pip3 cannot bring it, not tried"
fi
