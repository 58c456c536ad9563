#!/bin/sh
# What `make install` does.
#   install.sh DESTDIR PREFIX SYSCONFDIR BUILD VERSION
#   install.sh --uninstall DESTDIR PREFIX
set -eu
cd "$(dirname "$0")/.."

if [ "$1" = --uninstall ]; then
    root=$2$3
    rm -f "$root"/bin/epd "$root"/bin/epd-engine "$root"/bin/epdctl \
        "$root"/lib/libepd.so "$root"/lib/libepd.so.0 "$root"/lib/libepd.a "$root"/lib/libepd-rpc.so \
        "$root"/lib/pkgconfig/epd.pc "$root"/include/epd.h "$root"/include/epd_errors.h \
        "$root"/lib/sysusers.d/epd.conf "$root"/lib/tmpfiles.d/epd.conf
    for unit in systemd/*.service; do
        rm -f "$root/lib/systemd/system/${unit##*/}"
    done
    rm -rf "$root"/share/doc/epd "$root"/share/epd
    exit 0
fi

root=$1$2 prefix=$2 etc=$1$3 build=$4 version=$5

put() { # mode source target
    [ ! -e "$2" ] || install -D -m "$1" "$2" "$3"
}
# With the installed paths instead of the default ones.
put_edited() {
    [ -e "$1" ] || return 0
    mkdir -p "$(dirname "$2")"
    sed "s,/usr/local/,$prefix/,g" "$1" >"$2"
    chmod 0644 "$2"
}

for program in epd epd-engine epdctl; do
    put 0755 "$build/bin/$program" "$root/bin/$program"
done
put 0755 "$build/lib/libepd.so.0" "$root/lib/libepd.so.0"
ln -sf libepd.so.0 "$root/lib/libepd.so"
put 0644 "$build/lib/libepd.a" "$root/lib/libepd.a"
put 0755 "$build/lib/libepd-rpc.so" "$root/lib/libepd-rpc.so"

mkdir -p "$root/include" "$root/lib/pkgconfig"
sed 's,#include "proto/errors.h",#include "epd_errors.h",' client/epd.h >"$root/include/epd.h"
put 0644 proto/errors.h "$root/include/epd_errors.h"
chmod 0644 "$root/include/epd.h"
cat >"$root/lib/pkgconfig/epd.pc" <<PC
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: epd
Description: client library of epd, the expert-parallel communication daemon
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lepd
PC

for unit in systemd/*.service; do
    put_edited "$unit" "$root/lib/systemd/system/${unit##*/}"
done
put_edited systemd/epd.sysusers "$root/lib/sysusers.d/epd.conf"
put_edited systemd/epd.tmpfiles "$root/lib/tmpfiles.d/epd.conf"
# The operator's file is never overwritten.
[ -e "$etc/epd/epd.conf" ] || put 0644 systemd/epd.conf "$etc/epd/epd.conf"

put 0644 client/python/epd.py "$root/share/epd/python/epd.py"
for doc in README.md LICENSE CHANGELOG.md; do
    put 0644 "$doc" "$root/share/doc/epd/$doc"
done
put 0644 proto/README.md "$root/share/doc/epd/protocol.md"
put 0644 tests/data/dsv2lite-translation-small.csv "$root/share/epd/dsv2lite-translation-small.csv"
put 0644 tests/data/LICENSE-esft.txt "$root/share/doc/epd/LICENSE-esft.txt"
