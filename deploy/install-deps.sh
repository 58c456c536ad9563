#!/bin/sh
# Installs the Debian packages that building and testing need. Does nothing (fast) when all are there.
#   install-deps.sh            install what is missing (root), else print the command and exit 1
#   install-deps.sh --check    install nothing: exit 1 and print the command when something is missing
#   install-deps.sh --runtime  only what the built programs need
set -eu
BUILD="gcc make pkg-config clang clang-format clang-tidy libclang-rt-14-dev libgrpc-dev
libprotobuf-c-dev protobuf-c-compiler protobuf-compiler libuv1-dev libcmocka-dev libjansson-dev
libinih-dev python3 python3-yaml python3-grpcio python3-protobuf python3-grpc-tools patchelf xz-utils git"
RUNTIME="libgrpc29 libprotobuf-c1 libuv1 libjansson4 libinih1"

mode=${1:-install}
want=$BUILD
case $mode in
install | --check) ;;
--runtime) want=$RUNTIME ;;
*)
    echo "usage: $0 [--check | --runtime]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "not a Debian system; install the equivalents of:" $want >&2
    [ "$mode" = --check ] && exit 0 # the compiler says what is missing
    exit 1
fi

# shellcheck disable=SC2086 # one word a package
have=$(LC_ALL=C dpkg-query -W -f '${Package} ${db:Status-Status}\n' $want 2>/dev/null |
    sed -n 's/ installed$//p' || true)
missing=
for p in $want; do
    case "
$have
" in
    *"
$p
"*) ;;
    *) missing="$missing $p" ;;
    esac
done
[ -n "$missing" ] || exit 0

command="apt-get install -y --no-install-recommends$missing"
if [ "$mode" = --check ] || [ "$(id -u)" -ne 0 ]; then
    echo "missing packages. As root: $command" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# The package index may be absent or old: then once more after an update.
$command </dev/null >/dev/null 2>&1 || {
    apt-get update </dev/null >/dev/null
    $command </dev/null >/dev/null
}
