package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

func efaModel(p efasim.Profile) func([6]byte) sim.Model {
	return func(mac [6]byte) sim.Model {
		return efasim.New(efasim.Options{MAC: mac, Profile: p})
	}
}

// efaHelpers loads Linux's driver and sets the names of both functions' RDMA devices: $ib here and $ibfar on the other
// end of the wire. Programs that communicate over them synchronise by TCP on the loopback interface.
const efaHelpers = helpers + `
modprobe ib_uverbs || fail modprobe ib_uverbs
# ibof N: the RDMA device of function N, by its only GID, which holds the MAC address
ibof() { for d in /sys/class/infiniband/*; do [ "$(cat $d/ports/1/gids/0)" = fe80:0000:0000:0000:0000:00ff:fe00:000$1 ] && basename $d; done; }
bothib() { [ -n "$(ibof 1)" ] && [ -n "$(ibof 2)" ] && [ $(ls -d /dev/infiniband/uverbs* | wc -l) = 2 ]; }
both_there() { until_true 100 bothib; ib=$(ibof 1) ibfar=$(ibof 2); }
load() { modprobe efa || fail modprobe efa; both_there; }
# ends COMMAND...: a program of two ends, @D stands for each end's device; the far one is started first, and is process $p
ends() {
  near="$(echo "$*" | sed "s/@D/$ib/") 127.0.0.1" far="$(echo "$*" | sed "s/@D/$ibfar/")"
  $far >/tmp/far 2>&1 &
  p=$!
  listens
}
broken() { show failed cat /tmp/near /tmp/far; fail "$@"; }
passed() { show $1 grep '^ *[0-9]' /tmp/near; say $1; }
# bothrun KEY COMMAND...: runs both ends
bothrun() {
  local k=$1; shift
  ends "$@"
  $near >/tmp/near 2>&1 || broken "$k: $near"
  wait $p || broken "$k, far end: $far"
  passed $k
}
# flood KEY COMMAND...: as bothrun, for datagrams. The peer's first doorbells may still be on their way to a model that has no core when the
# first datagrams come: those are dropped, as the model counts, and the peer waits for them. So it has three tries.
flood() {
  local k=$1; shift
  for try in 1 2 3; do
    ends "$@"
    if timeout 60 $near >/tmp/near 2>&1 && wait $p; then passed $k; return; fi
    kill -9 $p 2>/dev/null; wait $p 2>/dev/null
    say $k-lost $try
  done
  broken "$k: $near"
}
start() { # MORE ARGUMENTS...
  respond -set nic.driver=efa -set respond.handover=127.0.0.1:18515 -set respond.stamp_messages=true "$@"
}
client() { # KEY COMMAND...: a stock tool's client, on the first function
  local k=$1; shift
  timeout 300 "$@" 127.0.0.1 >/tmp/near 2>&1 || { show failed cat /tmp/near /tmp/err; fail "$k: $*"; }
  passed $k
}
measures() { # DEVICE: our bench on it
  for p in ud srd stamp-srd; do
    need bench run -iface $1 -driver efa -proto $p -target 127.0.0.1 -core 0 -count 50 -runs 1 -timeout 60s -warmup 0s -self-test 0s -out /tmp/$p
    grep -q 'received 50' /tmp/need || { show failed cat /tmp/need; fail "the bench lost messages of $p"; }
    grep -q '(sim)' /tmp/need || { show failed cat /tmp/need; fail "the report takes the model for silicon"; }
    show bench grep 'round trip\|sent' /tmp/need
    say measured $p
  done
}
counters() { for f in /sys/class/infiniband/$2/ports/1/hw_counters/*; do echo "$(basename $f): $(cat $f)"; done >/tmp/counters; show $1 cat /tmp/counters; }
# counted: shows both devices' counters, until the test no longer asks for them again
counted() {
  while counters near $ib; counters far $ibfar; say counters; [ "$answer" = again ]; do sleep 0.5; done
}
`

// efaF2Script exercises the stock driver and provider on the model: device attributes, messages, events and RDMA,
// counters, clients that are killed while they send, unloading of the driver, and a function reset.
const efaF2Script = efaHelpers + `
load
show devinfo ibv_devinfo -v -d $ib
show devinfofar ibv_devinfo -v -d $ibfar
say probed $ib $ibfar
bothrun ud ibv_ud_pingpong -d @D -g 0 -n 200 -s 512
bothrun events ibv_ud_pingpong -e -d @D -g 0 -n 100 -s 512
bothrun sendud ib_send_lat -c UD -d @D -x 0 -F -n 200
bothrun sendsrd ib_send_lat -c SRD -d @D -x 0 -F -n 200
flood bwud ib_send_bw -c UD -d @D -x 0 -F -n 500 -s 2048 -Q 1
bothrun bwsrd ib_send_bw -c SRD -d @D -x 0 -F -n 500 -s 4096 -Q 1
bothrun readsrd ib_read_lat -c SRD -d @D -x 0 -F -n 100 -s 50000
counted
stream="ib_send_bw -c SRD -x 0 -F -D 60 -Q 1"
$stream -d $ibfar >/dev/null 2>&1 & server=$!
listens
$stream -d $ib 127.0.0.1 >/dev/null 2>&1 & client=$!
say streaming
kill -9 $client $server
wait
say killed
need rmmod efa
say unloaded
load
bothrun reloaded ib_send_lat -c SRD -d @D -x 0 -F -n 100
for d in $ib $ibfar; do
  addr=$(basename $(readlink -f /sys/class/infiniband/$d/device))
  echo $addr >/sys/bus/pci/drivers/efa/unbind
  echo 1 >/sys/bus/pci/devices/$addr/reset || fail "reset of $addr"
  echo $addr >/sys/bus/pci/drivers/efa/bind || fail "bind $addr"
done
both_there
bothrun reset ib_send_lat -c UD -d @D -x 0 -F -n 100
need rmmod efa
say gone
`

// efaWireScript tests SRD's guarantee: each message arrives once, although the wire loses, duplicates and reorders
// frames.
const efaWireScript = efaHelpers + `
load
show devinfo ibv_devinfo -v -d $ib
show devinfofar ibv_devinfo -v -d $ibfar
say probed $ib $ibfar
bothrun sendsrd ib_send_lat -c SRD -d @D -x 0 -F -n 200
bothrun bwsrd ib_send_bw -c SRD -d @D -x 0 -F -n 1000 -s 4096 -Q 1
bothrun readsrd ib_read_lat -c SRD -d @D -x 0 -F -n 50 -s 50000
bothrun writesrd ib_write_lat -c SRD -d @D -x 0 -F -n 100 -s 50000
counted
need rmmod efa
say gone
`

// TestLabEFA runs Linux's efa driver and rdma-core's provider, both third-party, on two functions of the model (F2);
// and rdma-core's own tests and libfabric, which were written against the real device (F4).
func TestLabEFA(t *testing.T) {
	guests(t)
	beside(t, "efa/F2", func(t *testing.T) { newEFALab(t, efasim.EFA0, efasim.EFA2, sim.Impairment{}).f2(efaF2Script) })
	beside(t, "efa/F2wire", func(t *testing.T) {
		newEFALab(t, efasim.EFA1, efasim.EFA3, sim.Impairment{Loss: 0.02, Duplicate: 0.02, Reorder: 0.05, Seed: 1}).f2(
			efaWireScript)
	})
}

// efaLab is a run with two functions on one wire.
type efaLab struct {
	*scene
	profile  [2]efasim.Profile
	impaired bool
	last     [2]efasim.Counters
	idle     [2]efasim.Objects // without running clients
}

func newEFALab(t *testing.T, near, far efasim.Profile, bad sim.Impairment) *efaLab {
	l := &efaLab{scene: newScene(t), profile: [2]efasim.Profile{near, far}, impaired: bad.Loss > 0}
	available(t, l.kit.bringEFA(t.Context()))
	a, b := sim.Pair()
	for i, end := range []sim.Wire{a, b} {
		bad.Seed += uint64(i)
		l.serve(efaCard, sim.Impair(end, bad), efaModel(l.profile[i]))
	}
	return l
}

func (l *efaLab) model(i int) *efasim.Model { return l.functions[i].model.(*efasim.Model) }

// run runs the script, and logs the counts of each client and of the models.
func (l *efaLab) run(script string, limit time.Duration, layers []string, say func(key string, r Result) error) {
	r, err := l.play(Machine{
		Limit: limit, Layers: append([]string{efa}, layers...), Script: script,
		Say: func(key, _ string, r Result) error {
			r.log(l.T, key)
			return say(key, r)
		},
	})
	for _, line := range r["dmesg"] {
		if strings.Contains(line, "efa") && !strings.Contains(line, "taint") {
			l.Error("Linux's driver complains: ", line)
		}
	}
	must.OK(l, err)
}

// clients is how many messages or RDMA operations each client must have posted at this end, and at the other one.
var clients = map[string]struct {
	near, far int
	op        string
}{
	"ud": {200, 200, "send"}, "events": {100, 100, "send"}, "sendud": {200, 200, "send"}, "sendsrd": {200, 200, "send"}, "bwud": {500, 0, "send"}, "bwsrd": {500, 0, "send"},
	"readsrd": {50, 0, "read"}, "writesrd": {100, 100, "write"}, "reloaded": {100, 100, "send"}, "reset": {100, 100, "send"},
	"dgram": {10, 10, "send"}, "rdm": {10, 10, "send"},
}

// account compares the models' counts for a client with the expected numbers.
func (l *efaLab) account(key string) error {
	want, known := clients[key]
	if !known {
		return nil
	}
	var sent, got, retrans [2]int
	for i := range l.last {
		c := l.model(i).Counters()
		old := &l.last[i]
		switch want.op {
		case "send":
			sent[i], got[i] = int(c.SendWRs-old.SendWRs), int(c.RecvWRs-old.RecvWRs)
		case "read":
			sent[i], got[i] = int(c.ReadWRs-old.ReadWRs), int(c.ReadBytes-old.ReadBytes)
		case "write":
			sent[i], got[i] = int(c.WriteWRs-old.WriteWRs), int(c.WriteRecvBytes-old.WriteRecvBytes)
		}
		retrans[i] = int(c.RetransPackets - old.RetransPackets)
		l.last[i] = c
	}
	l.Logf("%s: %d and %d operations (%s), %d and %d frames sent again", key, sent[0], sent[1], want.op, retrans[0],
		retrans[1])
	if sent[0] < want.near || sent[1] < want.far {
		return fmt.Errorf("%s: the models saw %d and %d operations, at least %d and %d are expected", key, sent[0],
			sent[1], want.near, want.far)
	}
	if want.op == "send" && (sent[0] != got[1] || sent[1] != got[0]) {
		return fmt.Errorf("%s: %d messages left and %d arrived, %d left and %d arrived", key, sent[0], got[1], sent[1],
			got[0])
	}
	return nil
}

func (l *efaLab) f2(script string) {
	statistics := settling{}
	l.run(script, 400*time.Second, nil, func(key string, r Result) error {
		switch key {
		case "probed":
			l.attributes(0, r["devinfo"])
			l.attributes(1, r["devinfofar"])
			l.idle = l.objects()
		case "counters":
			if err := statistics.disagree(l.T, key, append(l.hwCounters(0, r["near"]),
				l.hwCounters(1, r["far"])...)); err != nil {
				return err
			}
			if c := l.last; l.impaired && (c[0].RetransPackets == 0 || c[0].Duplicates+c[1].Duplicates == 0) {
				return fmt.Errorf("the wire lost nothing: %+v", c)
			}
		case "unbooted": // it restarts
			l.last = [2]efasim.Counters{}
		case "streaming": // the clients are killed while they send
			before := l.model(0).Counters().SendWRs
			streams := func() bool {
				now := l.objects()
				return now[0].QPs > 0 && now[1].QPs > 0 && now[0].MRs > 0 && l.model(0).Counters().SendWRs > before+100
			}
			if !await.Holds(streams) {
				return fmt.Errorf("no stream: %+v, %d messages", l.objects(), l.model(0).Counters().SendWRs-before)
			}
		case "bwud-lost": // the peer dropped and counted each datagram that it still waits for
			var now [2]efasim.Counters
			var sent, got, drops uint64
			if !await.Holds(func() bool { // some frames may still be on the wire
				now = l.counters()
				sent, got, drops = now[0].SendWRs-l.last[0].SendWRs, now[1].RecvWRs-l.last[1].RecvWRs,
					now[1].RxDrops-l.last[1].RxDrops
				return sent == got+drops
			}) {
				return fmt.Errorf("%d datagrams were sent, %d arrived and %d were dropped", sent, got, drops)
			}
			l.Logf("%d of %d datagrams found no receive buffer", drops, sent)
			l.last = now
		case "killed":
			if err := l.left(); err != nil {
				return err
			}
			l.last = l.counters()
		case "unloaded", "gone":
			if got := l.objects(); got != [2]efasim.Objects{} {
				return fmt.Errorf("a driver that is gone left %+v", got)
			}
		default:
			return l.account(key)
		}
		return nil
	})
	for i := range l.last {
		if m := l.model(i); slices.ContainsFunc(m.Resets(), func(reason int) bool { return reason != 0 }) ||
			m.Counters().HostInfo == 0 {
			l.Errorf("function %d: resets for the reasons %d, where only 0 (normal) is expected; host information %d times", i, m.Resets(), m.Counters().HostInfo)
		}
	}
	proven(l.T, "F2", "Linux efa, libibverbs, perftest", "%d and %d messages", l.last[0].SendWRs, l.last[1].SendWRs)
}

func (l *efaLab) objects() [2]efasim.Objects {
	return [2]efasim.Objects{l.model(0).Objects(), l.model(1).Objects()}
}

func (l *efaLab) counters() [2]efasim.Counters {
	return [2]efasim.Counters{l.model(0).Counters(), l.model(1).Counters()}
}

// left reports objects that killed programs leave.
func (l *efaLab) left() error {
	if !await.Holds(func() bool { return l.objects() == l.idle }) {
		return fmt.Errorf("killed programs left objects: %+v, before there were %+v", l.objects(), l.idle)
	}
	return nil
}

// Output of ibv_devinfo on real devices, by PCI device ID: public reports and fi_info for efa1, rdma-core's issue 884
// for efa0.
var efaAttributes = map[uint16]map[string]string{
	0: {"transport": "unspecified (4)", "fw_ver": "0.0.0.0", "sys_image_guid": "0000:0000:0000:0000",
		"vendor_id": "0x1d0f", "phys_port_cnt": "1",
		"max_qp": "256", "max_cq": "512", "max_sge": "2", "max_qp_rd_atom": "0", "device_cap_flags": "0x00000000",
		"atomic_cap": "ATOMIC_NONE (0)",
		"state":      "PORT_ACTIVE (4)", "max_mtu": "4096 (5)", "active_mtu": "4096 (5)", "sm_lid": "0",
		"port_lid": "0", "port_lmc": "0x01",
		"link_layer": "Unspecified", "max_msg_sz": "0x22e0"},
	0xefa0: {"vendor_part_id": "61344", "hw_ver": "0xEFA0", "node_guid": "0000:0000:0000:0000", "max_mr": "262144"},
	0xefa1: {"vendor_part_id": "61345", "hw_ver": "0xEFA1", "max_mr": "262144"},
	0xefa2: {"vendor_part_id": "61346", "hw_ver": "0xEFA2"},
	0xefa3: {"vendor_part_id": "61347", "hw_ver": "0xEFA3", "max_mr": "524288"},
}

func (l *efaLab) attributes(i int, lines []string) {
	shown := map[string]string{}
	for _, line := range lines {
		name, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		shown[name] = strings.TrimSpace(v)
	}
	for _, id := range []uint16{0, l.profile[i].Device} {
		for name, want := range efaAttributes[id] {
			if shown[name] != want {
				l.Errorf("function %d: ibv_devinfo shows %s %q, real devices %q", i, name, shown[name], want)
			}
		}
	}
	if guid := shown["node_guid"]; l.profile[i].GUID != (guid == fmt.Sprintf("0000:00ff:fe00:000%d", i+1)) {
		l.Errorf("function %d: ibv_devinfo shows node_guid %s", i, guid)
	}
}

// hwCounters compares the statistics that Linux shows with the model's, and returns the differences.
func (l *efaLab) hwCounters(i int, lines []string) (wrong []string) {
	c := l.model(i).Counters()
	want := map[string]uint64{
		"tx_bytes": c.TxBytes, "tx_pkts": c.TxPackets, "rx_bytes": c.RxBytes, "rx_pkts": c.RxPackets,
		"rx_drops":   c.RxDrops,
		"send_bytes": c.SendBytes, "send_wrs": c.SendWRs, "recv_bytes": c.RecvBytes, "recv_wrs": c.RecvWRs,
		"rdma_read_wrs": c.ReadWRs, "rdma_read_bytes": c.ReadBytes, "rdma_read_wr_err": c.ReadErrors,
		"rdma_read_resp_bytes": c.ReadResponseBytes,
		"retrans_bytes":        c.RetransBytes, "retrans_pkts": c.RetransPackets,
		"retrans_timeout_events":     c.RetransTimeouts,
		"unresponsive_remote_events": c.Unresponsive, "impaired_remote_conn_events": c.Impaired,
	}
	if l.profile[i].Caps&efasim.CapRDMAWrite != 0 {
		for name, v := range map[string]uint64{"rdma_write_wrs": c.WriteWRs, "rdma_write_bytes": c.WriteBytes,
			"rdma_write_wr_err": c.WriteErrors, "rdma_write_recv_bytes": c.WriteRecvBytes} {
			want[name] = v
		}
	}
	for _, d := range catalogue.Differ(numbers(lines), want) {
		wrong = append(wrong, fmt.Sprintf("function %d: %s", i, d))
	}
	return wrong
}
