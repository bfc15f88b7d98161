#!/bin/bash
# setup.sh DIR: brings what the lab runs on into DIR: QEMU >= 10.1, a stock Debian kernel with its network modules, iPXE, and a
# root for the guest with busybox, ethtool, ping, and what talks RDMA. Nothing is installed on the host, and root is not needed. The mirror is
# the host's own, as apt is configured. Exit 3: this host cannot, and stderr says why.
set -euo pipefail
dir=$(realpath -m "$1") suite=trixie-backports
modules="ixgbe igb mlx5_core mlx5_ib mlx4_core mlx4_en mlx4_ib ena ib_uverbs virtio_net vfio-pci vfio_iommu_type1 af_packet"
cannot() { echo "$*" >&2; exit 3; }

[ "$(uname -m)" = x86_64 ] || cannot "the lab's guest is amd64, this host is $(uname -m)"
for t in apt-get apt-cache dpkg-deb; do command -v $t >/dev/null || cannot "no $t on this host"; done
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keys ] || cannot "no $keys: package debian-archive-keyring"
mirror=$(apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 2>/dev/null |
  awk '$1 == "Debian" && $2 !~ /-/ {print $3; exit}' || true)
[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | head -1 || true)
[ -n "$mirror" ] || cannot "apt on this host knows no Debian mirror"

# apt with a state of its own: an empty dpkg status makes it fetch every dependency.
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
own apt-get install -y --download-only qemu-system-x86 busybox-static kmod xz-utils ethtool iputils-ping ipxe \
  ibverbs-utils ibverbs-providers perftest >>"$dir/apt.log" 2>&1 ||
  cannot "apt cannot fetch QEMU from $suite: $(grep -m1 '^E:' "$dir/apt.log")"
# The kernel without its initramfs tools. From 7.x on it comes in several packages, before in one.
kernel=$(own apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-\([0-9]\)/\1/p' | head -1)
for p in linux-image linux-base linux-binary linux-modules; do
  (cd "$apt/cache/archives" && own apt-get download "$p-$kernel" >>"$dir/apt.log" 2>&1) || true
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
mkdir -p "$g/etc/libibverbs.d" "$g/usr/lib/x86_64-linux-gnu/libibverbs"
echo "driver mlx5" >"$g/etc/libibverbs.d/mlx5.driver"
cp -L "$lib"/libibverbs/libmlx5-rdmav*.so "$g/usr/lib/x86_64-linux-gnu/libibverbs/"
for l in libc.so.6 libm.so.6 libmnl.so.0 libcap.so.2 libidn2.so.0 libunistring.so.5 \
  $(for t in $rdma; do "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --list "$root/usr/bin/$t"; done |
    sed -n 's/^[ \t]*\([^ ]*\) => .*/\1/p' | sort -u); do
  [ ! -e "$lib/$l" ] || cp -L "$lib/$l" "$g/usr/lib/x86_64-linux-gnu/"
done
cp -L "$root/usr/lib64/ld-linux-x86-64.so.2" "$g/lib64/"

cp "$root/usr/lib/ipxe/ipxe.lkrn" "$dir/ipxe.lkrn"
cp "$all/vmlinuz" "$dir/vmlinuz" 2>/dev/null || cp "$root/boot/vmlinuz-$kernel" "$dir/vmlinuz"
cat >"$dir/qemu" <<END
#!/bin/sh
exec "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" "$root/usr/bin/qemu-system-x86_64" \\
  -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu" "\$@"
END
chmod +x "$dir/qemu"
"$dir/qemu" --version >"$dir/version"
echo "kernel $kernel" >>"$dir/version"
rm -rf "$apt/cache/archives"
