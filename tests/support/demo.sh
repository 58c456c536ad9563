#!/bin/sh
# The main job on the host backend: recorded MoE routing through the daemon, 4 client processes, 8
# seats spread unevenly over 2 devices, both layouts, every row checked; one client is killed in the
# middle of an op and replaced. Ends with "demo: ops=N tokens=N mismatches=0".
set -eu
bin=${EPD_BIN_DIR:-build/bin}
root=$(cd "$(dirname "$0")/../.." && pwd)
trace=$root/tests/data/dsv2lite-translation-small.csv
dir=$(mktemp -d /tmp/epd-demo-XXXXXX)
EPD_SOCKET=$dir/epd.sock
export EPD_SOCKET

"$bin/epd" --devices 2 --log-level warn 2>"$dir/log" &
daemon=$!
cleanup() {
    kill "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null || true
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

tries=0
until "$bin/epdctl" health >/dev/null 2>&1; do
    tries=$((tries + 1))
    if [ "$tries" -gt 200 ] || ! kill -0 "$daemon" 2>/dev/null; then
        echo "demo: the daemon did not start:" >&2
        cat "$dir/log" >&2
        exit 1
    fi
    sleep 0.05
done

total_ops=0 total_tokens=0 total_mismatches=0
replay() { # layout, expected ops, extra options
    layout=$1 expected=$2
    shift 2
    "$bin/epdctl" replay "$trace" --ranks 8 --batch 64 --hidden 2048 --layout "$layout" --clients 4 \
        --placement 0,0,0,1,1,1,1,1 --verify "$@" >"$dir/out"
    cat "$dir/out"
    ops=$(sed -n 's/^replay: ops=\([0-9]*\) .*/\1/p' "$dir/out")
    tokens=$(sed -n 's/^replay: .*tokens=\([0-9]*\) .*/\1/p' "$dir/out")
    mismatches=$(sed -n 's/^replay: .*mismatches=\([0-9]*\) .*/\1/p' "$dir/out")
    if [ "$ops" -ne "$expected" ]; then
        echo "demo: layout $layout did $ops ops, expected $expected" >&2
        exit 1
    fi
    total_ops=$((total_ops + ops))
    total_tokens=$((total_tokens + tokens))
    total_mismatches=$((total_mismatches + mismatches))
}

"$bin/epdctl" status
echo
# 2 layers of 1100 rows, 8 * 64 a step: 3 steps; 2 ops a seat and step: 2 * 8 * 3 * 2 = 96.
replay expert 96 --kill-client 2@1
grep -q '^repeated: ' "$dir/out" || { echo "demo: the kill was not noticed" >&2; exit 1; }
replay rank 96
"$bin/epdctl" health >/dev/null
kill "$daemon"
wait "$daemon" || { echo "demo: the daemon ended with an error" >&2; exit 1; }
if [ -s "$dir/log" ]; then
    echo "demo: the daemon warned:" >&2
    cat "$dir/log" >&2
    exit 1
fi
echo "demo: ops=$total_ops tokens=$total_tokens mismatches=$total_mismatches"
[ "$total_mismatches" -eq 0 ]
