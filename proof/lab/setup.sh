#!/bin/bash
# setup.sh DIR: brings what the lab runs on into DIR: QEMU >= 10.1, a stock Debian kernel with its network modules, iPXE, a
# root for the guest with busybox, ethtool, ping, and what talks RDMA, and what is laid over that root for some runs: DPDK's
# testpmd, and Python with pyverbs. Nothing is installed on the host, and root is not needed. The mirror is the host's own, as
# apt is configured. Exit 3: this host cannot, and stderr says why.
set -euo pipefail
dir=$(realpath -m "$1") suite=trixie-backports
modules="ixgbe igb mlx5_core mlx5_ib mlx4_core mlx4_en mlx4_ib ib_umad ib_ipoib ena ib_uverbs virtio_net virtio_blk vfio-pci vfio_iommu_type1 af_packet"
cannot() { echo "$*" >&2; exit 3; }

[ "$(uname -m)" = x86_64 ] || cannot "the lab's guest is amd64, this host is $(uname -m)"
for t in apt-get apt-cache dpkg-deb; do command -v $t >/dev/null || cannot "no $t on this host"; done
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keys ] || cannot "no $keys: package debian-archive-keyring"
mirror=$(apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 2>/dev/null |
  awk '$1 == "Debian" && $2 !~ /-/ {print $3; exit}' || true)
[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | head -1 || true)
[ -n "$mirror" ] || cannot "apt on this host knows no Debian mirror"

# apt with separate state: an empty dpkg status makes it fetch every dependency.
apt=$dir/apt root=$dir/root
rm -rf "$root"; mkdir -p "$apt"/{lists,cache/archives}/partial "$root"; : >"$apt/status"
for s in ${suite%-backports} $suite; do echo "deb [signed-by=$keys] $mirror $s main"; done >"$apt/sources.list"
own() {
  local cmd=$1; shift
  "$cmd" -q -o APT::Default-Release=$suite -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Cache::archives="$apt/cache/archives" -o APT::Sandbox::User="$(id -un)" -o APT::Install-Recommends=0 \
    -o APT::Keep-Downloaded-Packages=1 "$@"
}
own apt-get update >"$dir/apt.log" 2>&1 || cannot "apt cannot reach $mirror: $(grep -m1 '^[EW]:' "$dir/apt.log")"
# testpmd with the libraries that it names, which end in DPDK's ABI version, but without the headers that its package wants.
rte=$(own apt-cache depends dpdk-dev | sed -n 's/^ *Depends: \(librte-.*\)/\1/p' | sort -u)
abi=$(sed -n 's/^librte-eal//p' <<<"$rte")
pmds="ixgbe ena mlx5 virtio vhost"
own apt-get install -y --download-only qemu-system-x86 busybox-static kmod xz-utils ethtool iputils-ping ipxe \
  ibverbs-utils ibverbs-providers perftest opensm python3-pyverbs $rte "librte-mempool-ring$abi" \
  "librte-net-ixgbe$abi" "librte-net-ena$abi" "librte-net-mlx5-$abi" "librte-net-virtio$abi" "librte-net-vhost$abi" \
  >>"$dir/apt.log" 2>&1 ||
  cannot "apt cannot fetch QEMU from $suite: $(grep -m1 '^E:' "$dir/apt.log")"
# The kernel without its initramfs tools. From 7.x on it comes in several packages, before in one.
kernel=$(own apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-\([0-9]\)/\1/p' | head -1)
for p in linux-image-$kernel linux-base-$kernel linux-binary-$kernel linux-modules-$kernel dpdk-dev; do
  (cd "$apt/cache/archives" && own apt-get download "$p" >>"$dir/apt.log" 2>&1) || true
done

for d in bin sbin lib lib64; do mkdir -p "$root/usr/$d"; ln -sfn usr/$d "$root/$d"; done
for f in "$apt"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$f" | tar -C "$root" -x --keep-directory-symlink --no-same-owner; done
lib=$root/usr/lib/x86_64-linux-gnu
run() { "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --argv0 "$(basename "$1")" "$@"; }

# The guest's root: busybox, three tools with their libraries, and the modules with theirs, unpacked for busybox's modprobe.
g=$dir/guest; rm -rf "$g"; mkdir -p "$g"/{bin,dev,proc,sys,tmp,lab,lib64,usr/lib/x86_64-linux-gnu,"lib/modules/$kernel"}
all=$root/usr/lib/modules/$kernel
[ -d "$all" ] || cannot "no kernel modules for $kernel in $suite"
"$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --argv0 depmod "$root/usr/bin/kmod" -b "$root/usr" "$kernel"
for m in $modules; do { grep -E "^[^:]*/${m//[-_]/[-_]}\.ko(\.xz)?:" "$all/modules.dep" || true; } | tr -d : | tr ' ' '\n'; done |
  sort -u | (cd "$all" && xargs -r cp --parents -t "$g/lib/modules/$kernel")
cp "$all"/modules.{builtin,builtin.modinfo,order} "$g/lib/modules/$kernel/"
find "$g/lib/modules" -name '*.ko.xz' | while read -r f; do run "$root/usr/bin/xz" -d "$f"; done
"$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --argv0 depmod "$root/usr/bin/kmod" -b "$g" "$kernel"
cp "$root/usr/bin/busybox" "$g/bin/"
for b in $("$g/bin/busybox" --list); do [ "$b" = busybox ] || ln -sf busybox "$g/bin/$b"; done
rm -f "$g/bin/ping"
cp "$root/usr/sbin/ethtool" "$root/usr/bin/ping" "$g/bin/"
rdma="ibv_devinfo ibv_ud_pingpong ibv_rc_pingpong ibv_srq_pingpong ib_send_lat ib_write_lat ib_read_lat raw_ethernet_lat"
for t in $rdma; do cp "$root/usr/bin/$t" "$g/bin/"; done
cp "$root/usr/sbin/opensm" "$g/bin/"
mkdir -p "$g/etc/libibverbs.d" "$g/usr/lib/x86_64-linux-gnu/libibverbs"
for d in mlx4 mlx5; do echo "driver $d" >"$g/etc/libibverbs.d/$d.driver"; done
cp -L "$lib"/libibverbs/libmlx[45]-rdmav*.so "$g/usr/lib/x86_64-linux-gnu/libibverbs/"
for l in libc.so.6 libm.so.6 libmnl.so.0 libcap.so.2 libidn2.so.0 libunistring.so.5 \
  $(for t in $rdma opensm; do "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --list "$g/bin/$t"; done |
    sed -n 's/^[ \t]*\([^ ]*\) => .*/\1/p' | sort -u); do
  [ ! -e "$lib/$l" ] || cp -L "$lib/$l" "$g/usr/lib/x86_64-linux-gnu/"
done
cp -L "$root/usr/lib64/ld-linux-x86-64.so.2" "$g/lib64/"

# over ROOT FILE...: the libraries that the files need and the guest has not, into ROOT.
over() {
  local o=$1; shift
  mkdir -p "$o/usr/lib/x86_64-linux-gnu"
  for f in "$@"; do "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --list "$f"; done |
    sed -n 's/^[ \t]*\([^ ]*\) => .*/\1/p' | sort -u | while read -r l; do
    [ ! -e "$lib/$l" ] || [ -e "$g/usr/lib/x86_64-linux-gnu/$l" ] || cp -L "$lib/$l" "$o/usr/lib/x86_64-linux-gnu/"
  done
}

d=$dir/dpdk-guest plug=usr/lib/x86_64-linux-gnu/dpdk/pmds-$abi.0; rm -rf "$d"; mkdir -p "$d/bin" "$d/$plug"
[ -x "$root/usr/bin/dpdk-testpmd" ] || cannot "no dpdk-testpmd in $suite: $(grep -m1 '^E:' "$dir/apt.log")"
cp "$root/usr/bin/dpdk-testpmd" "$d/bin/"
for m in $(printf 'net_%s ' $pmds) common_mlx5 mempool_ring bus_pci bus_vdev bus_auxiliary; do cp -L "$root/$plug/librte_$m.so.$abi.0" "$d/$plug/"; done
cp -L "$lib/libgcc_s.so.1" "$d/usr/lib/x86_64-linux-gnu/" # glibc loads it where a thread ends
over "$d" "$d/bin/dpdk-testpmd" "$d/$plug"/*
for m in "$d/$plug"/*; do ln -sf "/$plug/$(basename "$m")" "$d/usr/lib/x86_64-linux-gnu/$(basename "$m" .0)"; done # one file, or it is loaded twice

p=$dir/pyverbs-guest; rm -rf "$p"; mkdir -p "$p"/{bin,usr/lib/python3/dist-packages/tests}
cp -L "$root/usr/bin/python3" "$p/bin/"
cp -r "$root"/usr/lib/python3.* "$p/usr/lib/"
cp -r "$root/usr/lib/python3/dist-packages/pyverbs" "$p/usr/lib/python3/dist-packages/"
cp "$root"/usr/share/doc/rdma-core/tests/* "$p/usr/lib/python3/dist-packages/tests/"
gunzip "$p"/usr/lib/python3/dist-packages/tests/*.gz
over "$p" "$p/bin/python3" "$p"/usr/lib/python3.*/lib-dynload/*.so $(find "$p/usr/lib/python3" -name '*.so')

# What Linux publishes of the ConnectX's commands. The file comes alone: its package is not for the guest.
(cd "$apt" && own apt-get download "linux-headers-${kernel%-*}-common" >>"$dir/apt.log" 2>&1) || true
mkdir -p "$dir/headers"
for f in "$apt"/linux-headers-*.deb; do
  [ ! -e "$f" ] || dpkg-deb --fsys-tarfile "$f" | tar -xO --wildcards '*/include/linux/mlx5/mlx5_ifc.h' >"$dir/headers/mlx5_ifc.h"
  rm -f "$f"
done

cp "$root/usr/lib/ipxe/ipxe.lkrn" "$dir/ipxe.lkrn"
cp "$all/vmlinuz" "$dir/vmlinuz" 2>/dev/null || cp "$root/boot/vmlinuz-$kernel" "$dir/vmlinuz"
# starter NAME PROGRAM ARGUMENTS: a script that runs a program of $root, also after $dir was moved.
starter() {
  cat >"$dir/$1" <<END
#!/bin/sh
root=\$(dirname "\$0")/root
exec "\$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "\$root/usr/lib/x86_64-linux-gnu" "\$root/usr/bin/$2" $3 "\$@"
END
  chmod +x "$dir/$1"
}
starter qemu qemu-system-x86_64 '-L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu"'
starter testpmd dpdk-testpmd '-d "$root/'"$plug"'"'
"$dir/qemu" --version >"$dir/version"
echo "DPDK $(own apt-cache show dpdk-dev | sed -n 's/^Version: //p' | head -1)" >>"$dir/version"
echo "kernel $kernel" >>"$dir/version"
rm -rf "$apt/cache/archives"
