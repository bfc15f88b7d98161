package lab

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/replay"
	"github.com/rebound-nic/rebound/sim"
)

// tap is a tap interface of this host's kernel in a separate network namespace. Frames sent to it reach a QEMU device.
type tap struct {
	ns    netns.NsHandle
	files []*os.File // one for each queue
}

// newTap creates the interface with the address 10.9.0.2/24. The interface and its namespace are removed when the test
// ends.
func newTap(t *testing.T, queues, mtu int) *tap {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("making network namespaces takes root")
	}
	p := &tap{}
	onThread(func() {
		var err error
		if p.ns, err = netns.New(); err != nil {
			t.Error("new network namespace:", err)
			return
		}
		for _, name := range []string{"all", "default"} { // IPv6 sends unsolicited frames at unexpected times
			os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
		}
		link := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: "tap0", MTU: mtu}, Mode: netlink.TUNTAP_MODE_TAP, Queues: queues,
			NonPersist: true,
			Flags:      netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_MULTI_QUEUE,
		}
		if queues == 1 {
			link.Flags &^= netlink.TUNTAP_MULTI_QUEUE
		}
		if err := netlink.LinkAdd(link); err != nil {
			t.Error("make a tap:", err)
			return
		}
		p.files = link.Fds
		l, err := netlink.LinkByName("tap0")
		if err == nil {
			err = netlink.LinkSetMTU(l, mtu)
		}
		if err == nil {
			a, _ := netlink.ParseAddr("10.9.0.2/24")
			err = netlink.AddrAdd(l, a)
		}
		// for a minute: a guest on a busy machine may not reply within three seconds
		for _, name := range []string{"mcast_solicit", "mcast_resolicit"} {
			os.WriteFile("/proc/sys/net/ipv4/neigh/tap0/"+name, []byte("60"), 0)
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Error("tap0:", err)
		}
	})
	t.Cleanup(func() {
		for _, f := range p.files {
			f.Close()
		}
		p.ns.Close()
	})
	if t.Failed() {
		t.FailNow()
	}
	return p
}

func (p *tap) run(name string, args ...string) (out string, err error) {
	onThread(func() {
		if err = netns.Set(p.ns); err != nil {
			return
		}
		var b []byte
		if b, err = exec.Command(name, args...).CombinedOutput(); err != nil {
			err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, b)
		}
		out = string(b)
	})
	return out, err
}

func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread cannot be reused
		f()
	}()
	<-done
}

// traffic pings the responder from the host's kernel with frames of many sizes, and floods it with datagrams.
func (p *tap) traffic(flood string, pings, datagrams, mtu int) error {
	sizes := []int{0, 1, 18, 56, 63, 64, 65, 256, 777, 1400, 1471, 1472}
	if mtu > 1500 {
		sizes = append(sizes, 1473, 3000, 4096, mtu-29, mtu-28)
	}
	for _, size := range sizes {
		if err := p.ping(pings, "-M", "do", "-s", fmt.Sprint(size)); err != nil {
			return err
		}
	}
	_, err := p.run(flood, "10.9.0.1:7", fmt.Sprint(datagrams), fmt.Sprint(mtu-28))
	return err
}

// ping pings the responder at a high rate. The replies are counted by the kernel, because ping itself waits for the
// last one only for two of the previous round trips, and counts later ones as lost.
func (p *tap) ping(count int, args ...string) error {
	before, err := p.replies()
	if err != nil {
		return err
	}
	args = append([]string{"-n", "-q", "-f", "-c", fmt.Sprint(count)}, append(args, "10.9.0.1")...)
	out, err := p.run("ping", args...)
	if err != nil || regexp.MustCompile("duplicates|errors|wrong|corrupted").MatchString(out) {
		return fmt.Errorf("ping %v: %v\n%s", args, err, out)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		after, err := p.replies()
		if err != nil || after == before+count {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("ping %v: %d replies came, want %d\n%s", args, after-before, count, out)
		}
	}
}

func (p *tap) replies() (n int, err error) {
	out, err := p.run("cat", "/proc/self/net/snmp")
	if err != nil {
		return 0, err
	}
	lines := strings.Split(out, "\n")
	for i, l := range lines { // a line of names, then one of values
		f := strings.Fields(l)
		if at := slices.Index(f, "InEchoReps"); at > 0 && f[0] == "Icmp:" {
			return strconv.Atoi(strings.Fields(lines[i+1])[at])
		}
	}
	return 0, errors.New("/proc/net/snmp has no count of echo replies")
}

// flows sends pings from many sources at once, so that they spread over the device's queues.
func (p *tap) flows() error {
	for n := 10; n < 26; n++ {
		if _, err := p.run("ip", "addr", "add", fmt.Sprintf("10.9.0.%d/24", n), "dev", "tap0"); err != nil {
			return err
		}
		if err := p.ping(50, "-I", fmt.Sprintf("10.9.0.%d", n)); err != nil {
			return err
		}
	}
	return nil
}

// virtioNIC is one of QEMU's own virtio network devices.
type virtioNIC struct {
	name       string
	properties string // of virtio-net-pci, in addition to the common ones
	queues     int
	mtu        int
	push       string // description of the rings in Info
	refused    string // our driver's error if it cannot use the device
}

// Behind an IOMMU, and without one: in the latter case the device uses physical addresses, as on most cloud machines.
var (
	virtioNICs = []virtioNIC{
		{name: "split", properties: ",iommu_platform=on,disable-legacy=on", queues: 1, mtu: 1500, push: "split ring"},
		{name: "packed", properties: ",iommu_platform=on,disable-legacy=on,packed=on,host_mtu=9000", queues: 1, mtu: 9000, push: "packed ring"},
		{name: "split mq", properties: ",iommu_platform=on,disable-legacy=on,mq=on,vectors=6,host_mtu=9000", queues: 2, mtu: 9000, push: "split ring"},
		{name: "packed mq", properties: ",iommu_platform=on,disable-legacy=on,packed=on,mq=on,vectors=6", queues: 2, mtu: 1500, push: "packed ring"},
		{name: "bypass", properties: ",iommu_platform=off,disable-legacy=on", queues: 1, mtu: 1500, refused: "VIRTIO_F_ACCESS_PLATFORM"},
	}
	virtioPhysical = []virtioNIC{
		{name: "transitional", properties: ",disable-legacy=off", queues: 1, mtu: 1500, push: "split ring"},
		{name: "modern", properties: ",disable-legacy=on,packed=on", queues: 1, mtu: 1500, push: "packed ring"},
		{name: "legacy", properties: ",disable-legacy=off,disable-modern=on", queues: 1, mtu: 1500, refused: "a legacy device"},
	}
)

// virtioScript runs our responder on each of the devices, which Linux's driver uses before and after it. Set before it
// are $devices (for each its queues, or "no" if our driver must reject it), $bind, and $set, the flags for a machine
// without an IOMMU.
const virtioScript = helpers + `
sysctl -q -w vm.nr_hugepages=64
modprobe vfio-pci || fail modprobe vfio-pci
modprobe virtio_net || fail modprobe virtio_net
all() { no=0; for q in $devices; do no=$((no+1)); [ -n "$(having $no)" ] || return 1; done; }
until_true 100 all
responding() {
  responder -v -config /lab/config.toml -set nic.driver=virtio -set nic.device=$addr -set 'respond.addresses=["10.9.0.1/24"]' $set $cores \
    >/tmp/out 2>/tmp/err
}
start() { : >/tmp/out; responding & pid=$!; await_ready; }
kill9() { kill -9 $(pidof responder); wait $pid; }
stopped() {
  local code=0
  kill -TERM $(pidof responder)
  wait $pid || code=$?
  [ $code = 0 ] || { show failed cat /tmp/err; fail "the responder ended with $code"; }
}
no=0
for q in $devices; do
  no=$((no+1)) dev=$(having $no) cores=
  [ $q != 2 ] || cores='-set cpu.cores=[0,1]'
  addr=$(basename $(readlink -f /sys/class/net/$dev/device/..))
  need responder bind $bind $addr
  need responder nics
  grep -q "^$addr .* virtio" /tmp/need || { show failed cat /tmp/need; fail nics; }
  if [ $q = no ]; then
    responding && fail "a device that our driver cannot have is driven"
    show refused$no cat /tmp/err
    say refused $no
  else
    start
    show info$no cat /tmp/err
    say ready $no $(grep '^ready' /tmp/out)
    kill9
    start
    say again $no
    stopped
    show summary$no cat /tmp/out
    say stopped $no
    mkdir /tmp/probe$no
    need responder probe -stage up -set nic.driver=virtio $set -o /tmp/probe$no $addr
    show probe$no base64 /tmp/probe$no/*
    say probed $no
    if [ -z "$set" ]; then
      need bench run -iface $addr -driver virtio -source 10.9.0.1 -target 10.9.0.2 -closed -count 500 -timeout 60s -warmup 0s -self-test 0s -out /tmp/own$no
      grep -q 'received 500' /tmp/need || { show failed cat /tmp/need; fail "the bench lost replies"; }
      show bench cat /tmp/need
      say measured $no
    fi
  fi
  need responder unbind $addr
  back() { [ -n "$(having $no)" ]; }
  until_true 100 back
done
`

// replayed opens our driver on a model created from a probe file of QEMU's device.
func replayed(t *testing.T, path string, text []string, n virtioNIC) error {
	b, err := base64.StdEncoding.DecodeString(strings.Join(text, ""))
	if err == nil {
		err = os.WriteFile(path, b, 0o644)
	}
	if err != nil {
		return err
	}
	file, err := evidence.Read(path)
	if err != nil {
		return err
	}
	m, err := replay.Model(file)
	if err != nil {
		return err
	}
	port, err := sim.New(m, sim.Options{Name: "replay"})
	if err != nil {
		return err
	}
	defer port.Close()
	port.Start()
	defer port.Stop()
	fn, err := port.Function()
	if err != nil {
		return err
	}
	d, err := virtio.Open(fn, nic.Options{Queues: n.queues})
	if err != nil {
		return fmt.Errorf("%s, replayed: %w", n.name, err)
	}
	defer d.Close()
	was, is := file.Info, d.Info()
	if is.Push != was.Push || is.MTU != was.MTU || is.MTU != n.mtu {
		return fmt.Errorf("%s: replayed as %+v, was %+v", n.name, is, was)
	}
	t.Logf("%s: replayed: %s, MTU %d; %s", n.name, is.Push, is.MTU, path)
	return nil
}

// TestLabVirtio runs our driver on a third-party device, QEMU's virtio-net, in a stock Linux: rung F4. The host's
// kernel is the peer, through a tap.
func TestLabVirtio(t *testing.T) {
	guests(t)
	beside(t, "virtio/F4", func(t *testing.T) { virtioF4(t, virtioNICs, true) })
	beside(t, "virtio/F4physical", func(t *testing.T) { virtioF4(t, virtioPhysical, false) })
}

// onHost builds a program of the lab for this host. It is removed when the test ends, because the folder of a failed
// test stays.
func (s *scene) onHost(name string) string {
	s.Helper()
	out := filepath.Join(s.dir, name)
	if said, err := exec.Command("go", "build", "-o", out, "github.com/rebound-nic/rebound/proof/lab/"+
		name).CombinedOutput(); err != nil {
		s.Fatalf("%v\n%s", err, said)
	}
	s.Cleanup(func() { os.Remove(out) })
	return out
}

func virtioF4(t *testing.T, nics []virtioNIC, iommu bool) {
	s := newScene(t)
	flood := s.onHost("flood")
	var taps []*tap
	var devices []Device
	var words []string
	for i, n := range nics {
		p := newTap(t, n.queues, n.mtu)
		fds := make([]string, n.queues)
		for q := range fds {
			fds[q] = fmt.Sprintf("FD%d", q)
		}
		word := fmt.Sprint(n.queues)
		if n.refused != "" {
			word = "no"
		}
		taps, words = append(taps, p), append(words, word)
		devices = append(devices, Device{
			Model:   fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=02:00:00:00:00:%02x,romfile=%s", i, i+1, n.properties),
			Backend: fmt.Sprintf("tap,id=n%d,fds=%s", i, strings.Join(fds, ":")),
			Files:   p.files,
		})
	}
	bind, set := "", ""
	if !iommu {
		bind, set = "-no-driver", "-set nic.unsafe_no_iommu=true"
	}
	_, err := s.play(Machine{
		Limit: 4 * time.Minute, Devices: devices, IOMMU: iommu, Files: s.programs("responder", "bench"),
		Script: fmt.Sprintf("devices='%s' bind='%s' set='%s'\n%s", strings.Join(words, " "), bind, set, virtioScript),
		Say: func(key, text string, r Result) error {
			var i int // the device's number; booting has none
			if fmt.Sscan(text, &i); key == "boot" || key == "unbooted" {
				return nil
			}
			n, p := nics[i-1], taps[i-1]
			t.Logf("%s: %s", n.name, key)
			switch key {
			case "refused":
				if said := strings.Join(r["refused"+strconv.Itoa(i)], "\n"); !strings.Contains(said, n.refused) {
					return fmt.Errorf("it should be refused for %q: %s", n.refused, said)
				}
			case "ready":
				if said := strings.Join(r["info"+strconv.Itoa(i)], "\n"); !strings.Contains(said, "backend=virtual") ||
					!strings.Contains(said, `push="`+n.push+`"`) {
					return fmt.Errorf("it should be virtual, with a %s: %s", n.push, said)
				}
				return p.traffic(flood, 200, 2000, n.mtu)
			case "again":
				if err := p.traffic(flood, 50, 200, n.mtu); err != nil {
					return err
				}
				if n.queues > 1 {
					return p.flows()
				}
			case "probed":
				return replayed(t, filepath.Join(s.dir, fmt.Sprintf("probe%d.tar.zst", i)), r["probe"+strconv.Itoa(i)],
					n)
			case "stopped":
				t.Logf("%s", strings.Join(r["summary"+strconv.Itoa(i)], "\n"))
			}
			return nil
		},
	}, "bench")
	must.OK(t, err)
	proven(t, "F4", "QEMU's virtio-net", "%d devices: pings, floods, kill -9 and again", len(nics))
}
