#!/bin/sh
# What `make dist` does: BUILD/dist/epd-VERSION-ARCH.tar.xz, a folder that runs wherever it is unpacked:
# bin, lib, and in lib every shared library they need but the C library's own.
#   dist.sh BUILD VERSION
set -eu
cd "$(dirname "$0")/.."
build=$1 name=epd-$2-$(uname -m)
dir=$build/dist/$name
rm -rf "$dir"
deploy/install.sh "$(realpath -m "$dir")" "" /etc "$build" "$2"
# Paths of the system make no sense in a folder that can be anywhere.
rm -rf "$dir/lib/systemd" "$dir/lib/sysusers.d" "$dir/lib/tmpfiles.d" "$dir/lib/pkgconfig"

# The same C library serves all programs of a process; ours must be the host's.
not_ours='^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv)\.so'
LD_LIBRARY_PATH=$build/lib ldd "$dir"/bin/* "$dir"/lib/*.so* |
    awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | sort -u |
    while read -r soname path; do
        if printf '%s\n' "$soname" | grep -Eq "$not_ours" || [ -e "$dir/lib/$soname" ]; then
            continue
        fi
        install -m 0755 "$path" "$dir/lib/$soname"
    done

for program in "$dir"/bin/*; do
    strip --strip-debug "$program"
    patchelf --set-rpath '$ORIGIN/../lib' "$program"
done
find "$dir/lib" -name '*.so*' -type f | while read -r library; do
    strip --strip-debug "$library"
    patchelf --set-rpath '$ORIGIN' "$library"
done
tar -C "$build/dist" --sort=name --owner=0 --group=0 --numeric-owner -cJf "$build/dist/$name.tar.xz" "$name"
echo "$build/dist/$name.tar.xz"
