#!/bin/sh
# The work points on this machine's host backend, as CSV: devices x workers x clients.
#   host_bench.sh BIN_DIR TRACE OUT.csv
set -eu
bin=$1 trace=$2 out=$3
dir=$(mktemp -d /tmp/epd-bench-XXXXXX)
trap 'kill $daemon 2>/dev/null || true; rm -rf "$dir"' EXIT
EPD_SOCKET=$dir/s
export EPD_SOCKET
: >"$out"
for setup in "1 1 1" "1 1 4" "2 1 4" "1 4 4" "4 1 8"; do
    set -- $setup
    "$bin/epd" --devices "$1" --workers "$2" --log-level warn 2>>"$dir/log" &
    daemon=$!
    until "$bin/epdctl" health >/dev/null 2>&1; do sleep 0.1; done
    "$bin/epdctl" replay "$trace" --ranks 8 --batch 32 --hidden 2048 --clients 4 --steps 2 --verify >&2
    "$bin/epdctl" bench --clients "$3" --iterations 200 --csv |
        sed "s/^point/devices,workers,clients,point/; t; s/^/$1,$2,$3,/" | { test -s "$out" && tail -n +2 || cat; } >>"$out"
    kill "$daemon"
    wait "$daemon" || true
done
cat "$dir/log" >&2
