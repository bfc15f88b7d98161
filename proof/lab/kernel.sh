#!/bin/bash
# kernel.sh DIR SUITE: fetches the kernel of another Debian release, or of Ubuntu's jammy, into DIR: its vmlinuz, and the modules that
# TestLabKernels and others load, as a layer over the guest's root. setup.sh ran before. Exit 3: this host cannot, and stderr says why.
set -euo pipefail
dir=$(realpath -m "$1") suite=$2
modules="ixgbe mlx5_core mlx5_ib mlx4_core mlx4_en mlx4_ib ib_uverbs ena virtio_net virtio_pci virtio_blk vfio-pci vfio_iommu_type1 veth af_packet sch_ingress cls_flower act_gact"
cannot() { echo "$*" >&2; exit 3; }
root=$dir/root lib=$dir/root/usr/lib/x86_64-linux-gnu apt=$dir/apt-$suite
run() { "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --argv0 "$(basename "$1")" "$@"; }
rm -rf "$apt"; mkdir -p "$apt"/{lists,cache/archives}/partial; : >"$apt/status"
if [ "$suite" = jammy ]; then # the mirror of Debian may have Ubuntu beside it. These packages never change, so their sums stand for a signature
  kernel=5.15.0-25-generic
  mirror=${REBOUND_UBUNTU_MIRROR:-$(sed -n '1s,.* \(http[^ ]*\)/debian/* .*,\1/ubuntu,p' "$dir/apt/sources.list")}
  while read -r sum file; do
    /usr/lib/apt/apt-helper download-file "$mirror/pool/main/l/$file" "$apt/$(basename "$file")" "SHA256:$sum" >"$dir/kernel-$suite.log" 2>&1 ||
      cannot "no $file at $mirror (REBOUND_UBUNTU_MIRROR names another mirror): $(tail -1 "$dir/kernel-$suite.log")"
  done <<END
ad56f8c442a54d4f5ff2dff010d00321d53e32b543f3a92f3ba4e042d20a71da linux-signed/linux-image-${kernel}_5.15.0-25.25_amd64.deb
d0ba4087d9e1d497925b3481d3531fba6c2a852855f8019d73b0b1385aa4da1f linux/linux-modules-${kernel}_5.15.0-25.25_amd64.deb
END
else
sed -n "1s/ [a-z]* main$/ $suite main/p" "$dir/apt/sources.list" >"$apt/sources.list"
own() {
  local cmd=$1; shift
  "$cmd" -q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Cache::archives="$apt/cache/archives" -o APT::Sandbox::User="$(id -un)" "$@"
}
own apt-get update >"$dir/kernel-$suite.log" 2>&1 || cannot "apt cannot reach $suite: $(grep -m1 '^[EW]:' "$dir/kernel-$suite.log")"
kernel=$(own apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-\([0-9]\)/\1/p' | head -1)
(cd "$apt" && own apt-get download "linux-image-$kernel") >>"$dir/kernel-$suite.log" 2>&1 ||
  cannot "apt cannot fetch linux-image-$kernel of $suite: $(grep -m1 '^E:' "$dir/kernel-$suite.log")"
fi

# Modules are unpacked for busybox's modprobe. Only later releases have them below /usr and compressed.
all=$apt/all g=$dir/kernel-$suite-guest; rm -rf "$g"; mkdir -p "$all"/usr/lib "$g/lib/modules/$kernel"; ln -s usr/lib "$all/lib"
for d in "$apt"/linux-*.deb; do dpkg-deb --fsys-tarfile "$d" | tar -C "$all" -x --keep-directory-symlink --no-same-owner; done
kmod() { "$root/usr/lib64/ld-linux-x86-64.so.2" --library-path "$lib" --argv0 "$1" "$root/usr/bin/kmod" "${@:2}"; }
kmod depmod -b "$all" "$kernel"
for m in $modules; do { grep -E "^[^:]*/${m//[-_]/[-_]}\.ko(\.xz)?:" "$all/lib/modules/$kernel/modules.dep" || true; } | tr -d : | tr ' ' '\n'; done |
  sort -u | (cd "$all/lib/modules/$kernel" && xargs -r cp --parents -t "$g/lib/modules/$kernel")
cp "$all/lib/modules/$kernel"/modules.{builtin,builtin.modinfo,order} "$g/lib/modules/$kernel/"
find "$g/lib/modules" -name '*.ko.xz' | while read -r f; do run "$root/usr/bin/xz" -d "$f"; done
kmod depmod -b "$g" "$kernel"
# Where virtio_pci is a module, nothing in the guest would load it before the disk is needed.
dep=$g/lib/modules/$kernel/modules.dep
pci=$(sed -n 's/^\([^:]*virtio_pci\.ko\): *\(.*\)/\1 \2/p' "$dep")
sed -i "s|\(virtio_blk\.ko:\)|\1 $pci|" "$dep"
rm -f "$dep.bin"
cp "$all/boot/vmlinuz-$kernel" "$dir/vmlinuz-$suite"
rm -rf "$apt"
