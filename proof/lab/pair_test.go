package lab

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// farHelpers set up two Linux drivers: $dev here, and $far in a network namespace.
const farHelpers = helpers + `
modprobe $module || fail modprobe $module
until_true 100 both
dev=$(having 1) far=$(having 2)
namespace
need ip link set $far netns $ns
need there ip link set lo up
`

// pairHelpers bring both up, on one wire.
const pairHelpers = farHelpers + `
need there ip addr add $peer/24 dev $far
need ip addr add 10.9.0.2/24 dev $dev
need there ip link set $far up
up
`

// pairScript tests the two against each other: TCP in both directions, so that segmentation, checksums and several
// queues are used.
const pairScript = pairHelpers + `
say up
pings 200 56
pings 200 1472
dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
printf '#!/bin/sh\ncat >/tmp/one\n' >/tmp/sink1; printf '#!/bin/sh\ncat >/tmp/two\n' >/tmp/sink2; chmod +x /tmp/sink?
same() { # FILE PID: what came is in the file when the process has ended
  wait $2
  cmp /tmp/data $1 >/tmp/need 2>&1 || { show failed sh -c "cat /tmp/need; ls -l /tmp"; fail "$1 is not what was sent"; }
}
there nc -l -p 5001 -e /tmp/sink1 & 
sink=$!
listens there
nc $peer 5001 </tmp/data || fail nc
same /tmp/one $sink
nc -l -p 5002 -e /tmp/sink2 &
sink=$!
listens
there nc 10.9.0.2 5002 </tmp/data || fail nc back
same /tmp/two $sink
need arp -s $peer 02:00:00:00:00:02
need there arp -s 10.9.0.2 02:00:00:00:00:01
show tso ethtool -k $dev
settled stats ethtool -S $dev
`

// pairPhysical is the continuation on a machine without an IOMMU: our driver uses the second function through sysfs,
// with physical addresses, and Linux pings it from the first. Then Linux's driver uses it again.
const pairPhysical = `
need there ip link set $far netns 1
until_true 50 both
addr=$(basename $(readlink /sys/class/net/$(having 2)/device))
ip link set $(having 2) down
need responder bind -no-driver $addr
need responder nics
grep "^$addr " /tmp/need | grep -q unsafe_no_iommu || { show failed cat /tmp/need; fail nics; }
: >/tmp/out
if responder -config /lab/config.toml -set nic.driver=$driver -set nic.device=$addr -set "respond.addresses=[\"$peer/24\"]" >/tmp/out 2>/tmp/err; then
  fail "a function without an IOMMU is driven, and nobody allowed it"
fi
grep -q 'not bound to vfio-pci' /tmp/err || { show failed cat /tmp/err; fail "refused for another reason"; }
respond -config /lab/config.toml -set nic.driver=$driver -set nic.device=$addr -set nic.unsafe_no_iommu=true -set "respond.addresses=[\"$peer/24\"]"
say ready $(grep '^ready' /tmp/out)
up
for s in 16 56 65 256 777 1472; do pings 50 $s; done
floods $peer:7 1000 1472
say physical
stop
say stopped
need responder unbind $addr
until_true 100 both
`

// f2pair runs two models of different types with the Linux driver on both.
func (c *card) f2pair(t *testing.T) {
	s := newScene(t)
	f, g := s.pair(c, c.model, c.other)
	counters, script, files := settling{}, pairScript, map[string][]byte{}
	if c.physical {
		script, files = "sysctl -q -w vm.nr_hugepages=64\n"+pairScript+pairPhysical, s.programs("responder", "flood")
	}
	_, err := s.play(Machine{
		Limit: 120 * time.Second, Files: files,
		Script: fmt.Sprintf("module=%s driver=%s peer=10.9.0.1\n%s", c.module, c.name, script),
		Say: func(key, _ string, r Result) error {
			if key == "stopped" && g.port.BusMaster() {
				return errors.New("the responder's function may still do DMA when it was stopped")
			}
			if key == "stats" {
				return counters.disagree(t, key, f.agree(c, numbers(r[key]), false))
			}
			return nil
		},
	})
	must.OK(t, err)
	proven(t, "F2", "Linux "+c.module+", on both ends", "16 MiB by TCP each way, byte-equal")
	if c.physical {
		proven(t, "F3", "ours on sysfs without an IOMMU, Linux "+c.module+" as the peer",
			"300 pings, a flood, given back")
	}
}
