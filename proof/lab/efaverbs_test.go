package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// efaVerbsScript runs our responder beside Linux's driver, which keeps both functions: stock tools measure it on the
// other function, and each other on the same one. A killed responder leaves nothing behind. It also answers without any
// privilege, and our bench measures it.
const efaVerbsScript = efaHelpers + `
sysctl -q -w vm.nr_hugepages=64
load
echo 'root:x:0:0::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh' >/etc/passwd
say probed $ib $ibfar
addr=$(basename $(readlink -f /sys/class/infiniband/$ibfar/device))
show nics responder nics
# objects: what processes have of the responder's function
objects() {
  rdma resource show qp link $ibfar/1 2>&1 | grep -v 'comm \['
  for o in cq mr pd ctx; do rdma resource show $o dev $ibfar 2>&1 | grep -v 'comm \[' ; done
  true
}
none() { [ -z "$(objects)" ]; }
srd="ib_send_lat -c SRD -d $ib -x 0 -F -p 18516"
start -set nic.device=$ibfar
say ready $(grep '^ready' /tmp/out)
show log cat /tmp/err
client pingpong ibv_ud_pingpong -d $ib -g 0 -n 100 -s 512
client ud ib_send_lat -c UD -d $ib -x 0 -F -n 100
client srd $srd -n 100
client srd4096 $srd -n 100 -s 4096
# beside: stock tools on both ends; the responder's hand-over listens, too, so the peer's own port is waited for
far="ib_send_lat -c SRD -d $ibfar -x 0 -F -n 100 -p 19000"
$far >/tmp/far 2>&1 &
p=$!
until_true 100 grep -q ':4A38 .* 0A ' /proc/net/tcp /proc/net/tcp6
client beside ib_send_lat -c SRD -d $ib -x 0 -F -n 100 -p 19000
wait $p || broken "beside, far end"
client srdall $srd -n 5 -a
show objects objects
objects | grep -q 'comm responder' || fail the responder has no object
kill -9 $pid; wait $pid
show left objects
none || fail a killed responder leaves objects
say killed
start -set nic.device=$addr
say address $(grep '^ready' /tmp/out)
client again $srd -n 100
show summary cat /tmp/out
stop
need none
say stopped
ulimit -l unlimited
chmod 666 /tmp/out /tmp/err
rm -f /tmp/out
su -s /bin/sh nobody -c "exec responder -v -set cpu.lock_memory=false -set nic.driver=efa -set nic.device=$ibfar -set respond.handover=127.0.0.1:18515" >/tmp/out 2>/tmp/err &
pid=$!
await_ready
show unprivileged cat /tmp/err
grep -q 'which recognizing a device model needs' /tmp/err || fail "an ordinary user's responder does not say that the backend is a guess"
client nobody $srd -n 100
stop
say stopped
start -set nic.device=$ibfar
measures $ib
stop
need none
need rmmod efa
say gone
`

// TestLabEFAVerbs runs our driver beside Linux's in the guest, on the same function.
func TestLabEFAVerbs(t *testing.T) {
	guests(t)
	beside(t, "efa/F3verbs", efaVerbs)
}

func efaVerbs(t *testing.T) {
	l := newEFALab(t, efasim.EFA1, efasim.EFA3, sim.Impairment{})
	want := map[string]uint64{"pingpong": 100, "ud": 100, "srd": 100, "srd4096": 100, "beside": 100, "srdall": 5 * 10,
		"again": 100, "nobody": 100}
	before, answered := uint64(0), uint64(0)
	_, err := l.play(Machine{
		Limit: 400 * time.Second, OneCPU: true, Layers: []string{efa}, Files: l.programs("responder", "bench"),
		Script: efaVerbsScript,
		Say: func(key, text string, r Result) error {
			r.log(t, key)
			sent := l.model(1).Counters().SendWRs
			switch n, client := want[key]; {
			case key == "probed":
				l.idle = l.objects()
			case key == "ready" && !strings.Contains(text, "via=verbs"):
				return fmt.Errorf("the ready line does not say that the kernel keeps the device: %s", text)
			case client && sent-before < n:
				return fmt.Errorf("%s: the responder's function sent %d messages, at least %d are expected", key,
					sent-before, n)
			case client:
				answered += n
			case key == "killed" || key == "stopped":
				if err := l.left(); err != nil {
					return err
				}
			}
			before = sent
			return nil
		},
	}, "nics", "log", "objects", "left", "summary", "unprivileged", "bench", "failed")
	must.OK(t, err)
	proven(t, "F3", "ours beside Linux efa, Linux efa as the peer",
		"%d messages to ibv_ud_pingpong and perftest, kill -9 and again, without rights", answered)
}
