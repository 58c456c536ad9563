#!/bin/sh
# libepd.so shows the symbols of client/epd.map and no others, and needs no gRPC.
# EPD_LIB_DIR: where it is (default: lib beside EPD_BIN_DIR, default build/bin).
set -eu
root=$(cd "$(dirname "$0")/../../.." && pwd)
lib=${EPD_LIB_DIR:-${EPD_BIN_DIR:-$root/build/bin}/../lib}/libepd.so
if [ ! -e "$lib" ]; then
    echo "skip: $lib does not exist (make it, or set EPD_LIB_DIR)"
    exit 77
fi

shown=$(nm -D --defined-only "$lib" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
listed=$(sed -n 's/^ *\(epd_[a-z_]*\);$/\1/p' "$root/client/epd.map" | sort)
declared=$(grep -hv "^#define" "$root/client/epd.h" "$root/client/admin.h" | tr '\n' ' ' |
    grep -o 'EPD_API [^;{(]*(' | sed 's/.*\(epd_[a-z_]*\)($/\1/' | sort)

if [ "$shown" != "$listed" ]; then
    echo "libepd.so shows other symbols than client/epd.map lists:"
    printf '%s\n' "$shown" "$listed" | sort | uniq -u
    exit 1
fi
echo "ok - symbols shown are those of epd.map"
if [ "$declared" != "$listed" ]; then
    echo "epd.h and admin.h declare other functions than client/epd.map lists:"
    printf '%s\n' "$declared" "$listed" | sort | uniq -u
    exit 1
fi
echo "ok - symbols declared are those of epd.map"

if readelf -d "$lib" | grep NEEDED | grep -E 'grpc|gpr|absl|upb|stdc\+\+|protobuf'; then
    echo "libepd.so must not need the libraries above: only libepd-rpc.so may"
    exit 1
fi
echo "ok - no gRPC among the needed libraries"
