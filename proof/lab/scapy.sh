#!/bin/bash
# scapy.sh DIR: fetches Scapy, in which rdma-core's tests describe the commands of a ConnectX, and lays it over the guest's Python,
# compiled. setup.sh has been there before. Exit 3: this host cannot, and stderr says why.
set -euo pipefail
dir=$(realpath -m "$1") suite=trixie-backports
cannot() { echo "$*" >&2; exit 3; }
apt=$dir/apt root=$dir/root
own() {
  local cmd=$1; shift
  "$cmd" -q -o APT::Default-Release=$suite -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Cache::archives="$apt/cache/archives" -o APT::Sandbox::User="$(id -un)" "$@"
}
mkdir -p "$apt/cache/archives/partial"
(cd "$apt" && rm -f python3-scapy_*.deb && own apt-get download python3-scapy) >"$dir/scapy.log" 2>&1 ||
  cannot "apt cannot fetch python3-scapy: $(grep -m1 '^E:' "$dir/scapy.log")"
g=$dir/scapy-guest; rm -rf "$g"; mkdir -p "$g"
dpkg-deb --fsys-tarfile "$apt"/python3-scapy_*.deb | tar -C "$g" -x --no-same-owner ./usr/lib/python3/dist-packages/scapy
rm -f "$apt"/python3-scapy_*.deb
# A guest without KVM takes a minute to compile what the tests import: it gets that, too, of Python and of rdma-core's tests.
cp -r "$dir"/pyverbs-guest/usr/lib/python3* "$g/usr/lib/"
rm -rf "$g"/usr/lib/python3.*/lib-dynload
PYTHONHOME=$root/usr "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/usr/lib/x86_64-linux-gnu" "$root/usr/bin/python3" \
  -m compileall -q --invalidation-mode unchecked-hash -s "$g" "$g" >>"$dir/scapy.log" 2>&1 ||
  cannot "Python of the lab cannot compile Scapy: $(tail -1 "$dir/scapy.log")"
(cd "$g" && find . -type f ! -path '*/scapy/*' ! -name '*.pyc' -delete)
