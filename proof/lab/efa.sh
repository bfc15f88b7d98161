#!/bin/bash
# efa.sh DIR: Debian's kernel has no efa module. This builds the unmodified driver from Debian's source of the lab's kernel,
# against that kernel's headers and with its own compiler, and lays it over the guest's root with what talks to it: rdma-core's
# provider, more of perftest, libfabric's fi_pingpong, iproute2's rdma. setup.sh has been there before. Nothing is installed on the host, and root
# is not needed where users may have namespaces. Exit 3: this host cannot, and stderr says why.
set -euo pipefail
dir=$(realpath -m "$1") suite=trixie-backports
cannot() { echo "$*" >&2; exit 3; }
for t in unshare chroot xz tar; do command -v $t >/dev/null || cannot "no $t on this host"; done
kernel=$(sed -n 's/^kernel //p' "$dir/version")
apt=$dir/apt root=$dir/root
own() {
  local cmd=$1; shift
  "$cmd" -q -o APT::Default-Release=$suite -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Cache::archives="$apt/cache/archives" -o APT::Sandbox::User="$(id -un)" -o APT::Install-Recommends=0 \
    -o APT::Keep-Downloaded-Packages=1 "$@"
}
mkdir -p "$apt/cache/archives/partial"
source=linux-source-$(cut -d. -f1,2 <<<"$kernel")
version=$(own apt-cache show "linux-headers-$kernel" | sed -n 's/^Version: //p' | head -1)
own apt-get install -y --download-only make "linux-headers-$kernel" "$source=$version" libfabric-bin ibverbs-providers perftest iproute2 \
  >"$dir/efa.log" 2>&1 ||
  cannot "apt cannot fetch the source of $kernel: $(grep -m1 '^E:' "$dir/efa.log") (a newer kernel in $suite? remove $dir, then the lab takes it)"

# A root to build in: what was fetched just now, and busybox for the shell.
b=$dir/efa-build; rm -rf "$b"; mkdir -p "$b"/{proc,dev,tmp}
for d in bin sbin lib lib64; do mkdir -p "$b/usr/$d"; ln -sfn usr/$d "$b/$d"; done
tarball=
for f in "$apt"/cache/archives/*.deb; do
  case $f in */linux-source-*) tarball=$f; continue;; esac
  dpkg-deb --fsys-tarfile "$f" | tar -C "$b" -x --keep-directory-symlink --no-same-owner
done
cp "$root/usr/bin/busybox" "$b/usr/bin/"
for a in $("$root/usr/bin/busybox" --list); do [ -e "$b/usr/bin/$a" ] || ln -s busybox "$b/usr/bin/$a"; done
dpkg-deb --fsys-tarfile "$tarball" | tar -xO "./usr/src/$source.tar.xz" | xz -dc -T0 |
  tar -C "$b" -x --strip-components=2 --wildcards '*/drivers/infiniband/hw/efa/*' '*/drivers/net/ethernet/amazon/ena/*_defs.h' \
    '*/drivers/net/ethernet/intel/ixgbe/ixgbe_type.h' '*/include/uapi/rdma/*.h'
mv "$b/infiniband/hw/efa" "$b/efa"
# What the vendors publish of registers, commands and descriptors, and the kernel of its RDMA interface, for TestLayouts.
mkdir -p "$dir/headers"
cp "$b"/efa/*_defs.h "$b"/net/ethernet/amazon/ena/*_defs.h "$b/net/ethernet/intel/ixgbe/ixgbe_type.h" "$b"/uapi/rdma/*.h "$dir/headers/"
unshare -rmpf sh -c "mount -t proc proc '$b/proc' && exec chroot '$b' /bin/sh -ec '
  PATH=/usr/bin:/usr/sbin
  make -C /lib/modules/$kernel/build M=/efa CONFIG_INFINIBAND_EFA=m modules
  for s in /usr/bin/*-strip /usr/bin/strip; do \$s -g /efa/efa.ko && break; done'" >>"$dir/efa.log" 2>&1 ||
  cannot "the efa driver of $kernel does not build in a namespace of this host: $(tail -3 "$dir/efa.log" | tr '\n' ' ')"

g=$dir/guest e=$dir/efa-guest lib=usr/lib/x86_64-linux-gnu; rm -rf "$e"; mkdir -p "$e"/{bin,etc/libibverbs.d,$lib/libibverbs}
# efa.ko and the modules that it needs, into the guest's index of modules.
all=$root/usr/lib/modules/$kernel mods=lib/modules/$kernel
run() { "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$root/$lib" --argv0 "$1" "$root/usr/bin/$2" "${@:3}"; }
mkdir -p "$e/lib/modules"
cp -rs "$g/$mods" "$e/lib/modules/"
cp "$b/efa/efa.ko" "$e/$mods/"
for m in $(run modinfo kmod -F depends "$b/efa/efa.ko" | tr , ' '); do
  for f in $(sed -n "s|^\([^:]*/${m//[-_]/[-_]}\.ko\(\.xz\)\{0,1\}\):.*|\1|p" "$all/modules.dep"); do
    [ -e "$e/$mods/${f%.xz}" ] || { mkdir -p "$e/$mods/$(dirname "$f")"; case $f in *.xz) xz -dc "$all/$f" >"$e/$mods/${f%.xz}";; *) cp "$all/$f" "$e/$mods/$f";; esac; }
  done
done
run depmod kmod -b "$e" "$kernel"
find "$e/lib/modules" -type l -delete
cp "$b"/etc/libibverbs.d/efa.driver "$e/etc/libibverbs.d/"
cp -L "$b/$lib"/libibverbs/libefa-rdmav*.so "$e/$lib/libibverbs/"
for t in ib_send_bw ib_read_bw ib_write_bw ib_read_lat ib_write_lat ib_send_lat fi_pingpong fi_info rdma; do cp "$b/usr/bin/$t" "$e/bin/"; done
for f in "$e"/bin/* "$e/$lib"/libibverbs/*; do
  "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$b/$lib:$root/$lib" --list "$f"
done | sed -n 's/^[ \t]*\([^ ]*\) => .*/\1/p' | sort -u | while read -r l; do
  for from in "$b/$lib/$l" "$root/$lib/$l"; do
    [ -e "$g/$lib/$l" ] || [ ! -e "$from" ] || { cp -L "$from" "$e/$lib/"; break; }
  done
done
rm -rf "$b" "$apt/cache/archives"
