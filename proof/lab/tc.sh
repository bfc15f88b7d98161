#!/bin/bash
# tc.sh DIR: fetches iproute2's tc, which has flows counted and dropped by a card, with its libraries, and lays it over the guest's root.
# setup.sh ran before. Exit 3: this host cannot, and stderr says why.
set -euo pipefail
dir=$(realpath -m "$1") suite=trixie-backports
cannot() { echo "$*" >&2; exit 3; }
apt=$dir/apt root=$dir/root lib=usr/lib/x86_64-linux-gnu
own() {
  local cmd=$1; shift
  "$cmd" -q -o APT::Default-Release=$suite -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Cache::archives="$apt/cache/archives" -o APT::Sandbox::User="$(id -un)" -o APT::Install-Recommends=0 \
    -o APT::Keep-Downloaded-Packages=1 "$@"
}
mkdir -p "$apt/cache/archives/partial"
own apt-get install -y --download-only iproute2 >"$dir/tc.log" 2>&1 || cannot "apt cannot fetch iproute2: $(grep -m1 '^E:' "$dir/tc.log")"
b=$dir/tc-build; rm -rf "$b"; mkdir -p "$b"
for d in bin sbin lib lib64; do mkdir -p "$b/usr/$d"; ln -sfn usr/$d "$b/$d"; done
for f in "$apt"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$f" | tar -C "$b" -x --keep-directory-symlink --no-same-owner; done
g=$dir/tc-guest; rm -rf "$g"; mkdir -p "$g/bin" "$g/$lib"
cp -L "$b/usr/sbin/tc" "$g/bin/"
"$b/usr/lib64/ld-linux-x86-64.so.2" --library-path "$b/$lib" --list "$g/bin/tc" | sed -n 's/^[ \t]*\([^ ]*\) => .*/\1/p' | while read -r l; do
  [ ! -e "$b/$lib/$l" ] || [ -e "$dir/guest/$lib/$l" ] || cp -L "$b/$lib/$l" "$g/$lib/"
done
rm -rf "$b" "$apt/cache/archives"
