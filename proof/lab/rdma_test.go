package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// rdmaHelpers set the RDMA devices of both functions and the indices of their RoCE v2 addresses: $ib and $gid here,
// $ibfar and $gidfar for the second function, whose network interface is in the namespace.
const rdmaHelpers = pairHelpers + `
modprobe ib_uverbs || fail modprobe ib_uverbs
modprobe mlx5_ib || fail modprobe mlx5_ib
# ibof N: the RDMA device of function N, by its node GUID, which holds the MAC address
ibof() { for d in /sys/class/infiniband/*; do [ "$(cat $d/node_guid)" = 0200:00ff:ff00:000$1 ] && basename $d; done; }
bothib() { [ -n "$(ibof 1)" ] && [ -n "$(ibof 2)" ] && [ -e /dev/infiniband/uverbs1 ]; }
until_true 100 bothib
ib=$(ibof 1) ibfar=$(ibof 2)
# gidof DEVICE ADDRESS: the index of the RoCE v2 address that ends like that, in hexadecimal
gidof() {
  for t in /sys/class/infiniband/$1/ports/1/gid_attrs/types/*; do
    case "$(cat $t 2>/dev/null) $(cat /sys/class/infiniband/$1/ports/1/gids/$(basename $t))" in "RoCE v2 "*:ffff:$2) basename $t; return;; esac
  done
}
gids() { [ -n "$(gidof $ib 0a09:0002)" ] && [ -n "$(gidof $ibfar 0a09:0001)" ]; }
until_true 100 gids
gid=$(gidof $ib 0a09:0002) gidfar=$(gidof $ibfar 0a09:0001)
need ping -c 1 -W 60 $peer
# bothrun KEY COMMAND...: a program of two ends, the far one first; @D, @G stand for each end's device and address
bothrun() {
  local k=$1; shift
  local near="$(echo "$*" | sed "s/@D/$ib/; s/@G/$gid/")" far="$(echo "$*" | sed "s/@D/$ibfar/; s/@G/$gidfar/")"
  there $far >/tmp/far 2>&1 &
  local p=$!
  listens there
  $near $peer >/tmp/near 2>&1 || { show failed cat /tmp/near /tmp/far; fail "$k: $near $peer"; }
  wait $p || { show failed cat /tmp/near /tmp/far; fail "$k, far end: $far"; }
  show $k cat /tmp/near
  say $k
}
`

const rdmaScript = rdmaHelpers + `
show devinfo ibv_devinfo -v -d $ib
say probed $ib $gid $ibfar $gidfar
bothrun ud ibv_ud_pingpong -d @D -g @G -n 200 -s 512
bothrun rc ibv_rc_pingpong -d @D -g @G -n 200
bothrun srq ibv_srq_pingpong -d @D -g @G -n 20 -q 2
# -u 20 has perftest wait 4 s for an acknowledgement, seven times: half a second in all, which is its default, is too short where a model
# has no core.
bothrun send ib_send_lat -d @D -x @G -F -u 20 -n 100
bothrun sendud ib_send_lat -c UD -d @D -x @G -F -n 100
bothrun write ib_write_lat -d @D -x @G -F -u 20 -n 100 -s 5000
bothrun read ib_read_lat -d @D -x @G -F -u 20 -n 100 -s 5000
raw="-F -n 100 -s 100"
there raw_ethernet_lat --server -d $ibfar -B 02:00:00:00:00:02 -E 02:00:00:00:00:01 $raw >/tmp/far 2>&1 &
pid=$!
# It has begun to wait for frames when, ten looks in a row, it computed and met no page that it had not met before: while it begins it does.
looks=0 faults= used=
polls() {
  sleep 0.1
  set -- $(awk '{ print $10+$12, $14 }' /proc/$(pidof raw_ethernet_lat)/stat)
  if [ "$1" = "$faults" ] && [ "$2" -gt "$used" ]; then looks=$((looks+1)); else looks=0; fi
  faults=$1 used=$2
  [ $looks -ge 10 ]
}
until_true 200 polls
raw_ethernet_lat --client -d $ib -B 02:00:00:00:00:01 -E 02:00:00:00:00:02 $raw >/tmp/near 2>&1 || { show failed cat /tmp/near /tmp/far; fail raw packets; }
wait $pid || { show failed cat /tmp/far; fail raw packets, far end; }
show raw cat /tmp/near
say raw
pings 100 56 # Ethernet goes on beside it
need rmmod mlx5_ib
say gone
`

// TestLabRDMA runs Linux's mlx5_ib, libibverbs and perftest, all third-party, on two functions of the model (rung F4).
func TestLabRDMA(t *testing.T) {
	guests(t)
	beside(t, "mlx5/F4ib", rdma)
}

// roce returns the counters of two functions on one wire when as many RoCE packets have arrived as were sent, or after
// a timeout.
func roce(f, g *function) (x, y mlx5sim.Counters) {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		f.port.Hold(func() { x = f.model.(*mlx5sim.Model).Counters() })
		g.port.Hold(func() { y = g.model.(*mlx5sim.Model).Counters() })
		if x.RoCETx+y.RoCETx == x.RoCERx+y.RoCERx || time.Now().After(end) {
			return x, y
		}
	}
}

// roceLost reports whether more packets than expected had no QP at the receiver. After a timeout the last packets may
// arrive when their QP is already destroyed.
func roceLost(x, y mlx5sim.Counters, expected uint64) bool {
	return x.RoCEDropped+y.RoCEDropped > expected && x.AckTimeouts+y.AckTimeouts == 0
}

func rdma(t *testing.T) {
	s := newScene(t)
	f, g := s.pair(mlx5Card, connectX(mlx5sim.ConnectX5), connectX(mlx5sim.ConnectX6Dx))
	var x, y mlx5sim.Counters // before the end of QEMU, which resets the functions
	var overshoot uint64      // packets for no QP while ibv_srq_pingpong ran
	_, err := s.play(Machine{
		Limit: 200 * time.Second, Script: "module=mlx5_core peer=10.9.0.1\n" + rdmaScript,
		Say: func(key, _ string, _ Result) error {
			switch key {
			case "rc", "srq":
				// ibv_srq_pingpong stops when all its QPs together have sent enough, so a few more messages may be in
				// flight to a peer that has already destroyed its QPs.
				x, y := roce(f, g)
				overshoot = x.RoCEDropped + y.RoCEDropped - overshoot
			case "gone":
				x, y = roce(f, g)
				t.Logf("RoCE: %d and %d packets, %d and %d for no QP, %d and %d timeouts", x.RoCETx, y.RoCETx,
					x.RoCEDropped, y.RoCEDropped, x.AckTimeouts, y.AckTimeouts)
				if x.RoCETx != y.RoCERx || y.RoCETx != x.RoCERx || x.RoCETx < 1000 || roceLost(x, y, overshoot) {
					return fmt.Errorf("RoCE packets: %d sent and %d received, %d sent and %d received, %d and %d for no QP",
						x.RoCETx, y.RoCERx, y.RoCETx, x.RoCERx, x.RoCEDropped, y.RoCEDropped)
				}
			}
			return nil
		},
	}, "devinfo", "ud", "rc", "srq", "send", "sendud", "write", "read", "raw")
	must.OK(t, err)
	proven(t, "F4", "Linux mlx5_ib, libibverbs, perftest", "%d and %d RoCE packets", x.RoCETx, y.RoCETx)
}
