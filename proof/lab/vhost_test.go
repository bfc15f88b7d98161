package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// testpmd is DPDK's testpmd on this host, which forwards frames between vhost-user devices, in pairs: 0 and 1, 2 and 3.
type testpmd struct {
	enter io.WriteCloser // executes the commands typed so far
	said  bytes.Buffer
	done  chan error
}

func vhostSocket(dir string, i int) string { return filepath.Join(dir, fmt.Sprintf("vhost%d", i)) }

// startTestpmd has testpmd serve the given number of devices, with queues queue pairs each. It is stopped when the test
// ends.
func startTestpmd(t *testing.T, k *Kit, dir string, devices, queues int) *testpmd {
	t.Helper()
	var cpus unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &cpus))
	var ours []string
	for i := range 1024 {
		if cpus.IsSet(i) {
			ours = append(ours, strconv.Itoa(i))
		}
	}
	// The system schedules its two threads; it uses no huge pages, does not look for cards, and leaves no files.
	args := []string{"--lcores", fmt.Sprintf("(0,1)@(%s)", strings.Join(ours, ",")), "--no-huge", "-m", "256",
		"--no-shconf", "--no-pci", "--no-telemetry"}
	for i := range devices {
		args = append(args, "--vdev", fmt.Sprintf("net_vhost%d,iface=%s,queues=%d,iommu-support=1", i,
			vhostSocket(dir, i), queues))
	}
	// A frame is lost if testpmd still has to request its buffer's address from the IOMMU, unless it retries: for ten
	// seconds, because QEMU, which replies, may not run.
	commands := filepath.Join(dir, "testpmd.txt")
	must.OK(t, os.WriteFile(commands, []byte("set fwd io retry\nset burst tx delay 20 retry 500000\n"), 0o644))
	args = append(args, "--", "--cmdline-file="+commands, "--total-num-mbufs=8192", fmt.Sprintf("--rxq=%d", queues),
		fmt.Sprintf("--txq=%d", queues))
	p := &testpmd{done: make(chan error, 1)}
	cmd := exec.Command(k.Testpmd, args...)
	cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+dir)
	cmd.Stdout, cmd.Stderr = &p.said, &p.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.enter = must.Get(cmd.StdinPipe())(t)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal is sent when this thread exits
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.done <- cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		t.Fatal("testpmd:", err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-p.done
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		missing := 0
		for i := range devices {
			if _, err := os.Stat(vhostSocket(dir, i)); err != nil {
				missing++
			}
		}
		if missing == 0 {
			return p
		}
		select {
		case err := <-p.done:
			t.Fatalf("testpmd has ended: %v\n%s", err, p.said.String())
		default:
		}
		if time.Now().After(end) {
			cmd.Process.Kill()
			<-p.done
			t.Fatalf("testpmd serves %d devices of %d after a minute\n%s", devices-missing, devices, p.said.String())
		}
	}
}

// stream counts the frames that testpmd read from one queue and wrote to its partner's.
type stream struct{ port, queue, in, out, lost int }

var seenStream = regexp.MustCompile(
	`RX Port= *(\d+)/Queue= *(\d+) .*\n *RX-packets: (\d+) +TX-packets: (\d+) +TX-dropped: (\d+)`)

func (p *testpmd) end() (all []stream, err error) {
	io.WriteString(p.enter, "\n")
	select {
	case err, running := <-p.done:
		if err != nil || !running {
			return nil, fmt.Errorf("testpmd has ended: %v\n%s", err, p.said.String())
		}
	case <-time.After(time.Minute):
		return nil, errors.New("testpmd does not end")
	}
	for _, m := range seenStream.FindAllStringSubmatch(p.said.String(), -1) {
		var n [5]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[1+i])
		}
		all = append(all, stream{n[0], n[1], n[2], n[3], n[4]})
	}
	return all, nil
}

// vhostScript runs our responder on two devices, first with one queue and then with two, and with jumbo frames. On
// each, it is pinged by Linux's virtio_net on the device whose frames testpmd forwards. Ours are functions 1 and 3,
// Linux's 2 and 4. Set before it: $pings and $datagrams.
const vhostScript = helpers + `
peer=10.9.0.1
sysctl -q -w vm.nr_hugepages=64
modprobe vfio-pci || fail modprobe vfio-pci
modprobe virtio_net || fail modprobe virtio_net
all() { for i in 1 2 3 4; do [ -n "$(having $i)" ] || return 1; done; }
until_true 100 all
start() {
  respond -config /lab/config.toml -set nic.driver=virtio -set nic.device=$addr -set nic.mtu=$mtu -set 'respond.addresses=["10.9.0.1/24"]' $cores
}
fail() { # with what the responder has to say
  kill -TERM $pid; wait $pid
  show failed tail -20 /tmp/out
  say fail "$*"
  poweroff -f
}
# traffic CPU SHARE: from one processor, which is one queue of Linux's
traffic() {
  taskset -p $1 $$ >/dev/null
  for s in 0 56 777 1472 $((mtu-28)); do pings $((pings/$2)) $s; done
  flood $peer:7 $((datagrams/$2)) $((mtu-28)) >/tmp/need 2>&1 || { show failed cat /tmp/need /tmp/err; fail flood; }
  taskset -p 3 $$ >/dev/null
}
for ours in 1 3; do
  dev=$(having $((ours+1)))
  addr=$(basename $(readlink -f /sys/class/net/$(having $ours)/device/..))
  need responder bind $addr
  for q in 1 2; do
    mtu=1500; [ $q = 1 ] || mtu=9000
    need ethtool -L $dev combined $q
    need ip link set $dev mtu $mtu
    need ip addr add 10.9.0.2/24 dev $dev
    up
    cores=; [ $q = 1 ] || cores='-set cpu.cores=[0,1]'
    start
    show info$ours$q cat /tmp/err
    say ready$ours$q $(grep '^ready' /tmp/out)
    traffic 1 1
    say answered$ours$q
    if [ $q = 2 ]; then
      traffic 2 1
      kill -9 $pid; wait $pid
      start
      traffic 1 4
    fi
    stop
    show summary$ours$q cat /tmp/out
    say stopped$ours$q
    need ip addr flush dev $dev
    need ip link set $dev down
  done
  need responder unbind $addr
  back() { [ -n "$(having $ours)" ]; }
  until_true 100 back
done
`

// TestLabVhost runs our driver on virtio devices whose backend is DPDK's vhost-user, in testpmd on the host, rather
// than QEMU: rung F4. It tests both ring formats, behind an IOMMU whose misses testpmd requests from QEMU.
func TestLabVhost(t *testing.T) {
	guests(t)
	beside(t, "virtio/F4vhost", vhostF4)
}

func vhostF4(t *testing.T) {
	s := newScene(t)
	k, dir := s.kit, s.dir
	for at := filepath.Dir(k.Testpmd); at != "/"; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && info.Mode()&0o002 != 0 {
			t.Skipf("DPDK loads no drivers from below a folder that everybody may write to, and %s is one: clone elsewhere", at)
		}
	}
	const count, queues, pings, datagrams = 4, 2, 40, 400
	other := startTestpmd(t, k, dir, count, queues)
	var devices []Device
	for i := range count {
		ring := []string{"", ",packed=on"}[i/2]
		// Ours uses the IOMMU's addresses. Linux's uses physical addresses, and leaves no checksum to the other end.
		way := []string{",iommu_platform=on", ",csum=off,guest_csum=off,gso=off"}[i%2]
		devices = append(devices, Device{
			Socket:  fmt.Sprintf("id=c%d,path=%s", i, vhostSocket(dir, i)),
			Backend: fmt.Sprintf("vhost-user,id=n%d,chardev=c%[1]d,queues=%d", i, queues),
			Model:   fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=02:00:00:00:00:%02x,romfile=,disable-legacy=on,mq=on,vectors=6%s%s", i, i+1, ring, way),
		})
	}
	_, err := s.play(Machine{
		Limit: 2 * time.Minute, Devices: devices, IOMMU: true, Files: s.programs("responder", "flood"),
		Fresh:  true, // a vhost-user device attached to a resumed guest stops sending
		Script: fmt.Sprintf("pings=%d datagrams=%d\n%s", pings, datagrams, vhostScript),
		Say: func(key, _ string, r Result) error {
			if which, ok := strings.CutPrefix(key, "ready"); ok {
				want := fmt.Sprintf(`queues=%s mtu=%s push="%s ring"`, which[1:],
					map[string]string{"1": "1500", "2": "9000"}[which[1:]],
					map[string]string{"1": "split", "3": "packed"}[which[:1]])
				if said := strings.Join(r["info"+which], "\n"); !strings.Contains(said, want) {
					return fmt.Errorf("it should say %s: %s", want, said)
				}
			}
			return nil
		},
	})
	streams, wrong := other.end()
	os.WriteFile(filepath.Join(dir, "testpmd.log"), other.said.Bytes(), 0o644)
	if err = errors.Join(err, wrong); err != nil {
		t.Fatalf("%v; testpmd counted %+v", err, streams)
	}
	// What testpmd reads from our queues are replies. It lost none: its ring to Linux has room for all frames in
	// flight.
	replies := 0
	for port := 0; port < count; port += 2 {
		for queue := range queues {
			i := slices.IndexFunc(streams, func(s stream) bool { return s.port == port && s.queue == queue })
			if i < 0 || streams[i].in < pings+datagrams/2 || streams[i].lost > 0 || streams[i].in != streams[i].out {
				t.Errorf("testpmd shows no traffic, or a loss, from port %d, queue %d: %+v", port, queue, streams)
				continue
			}
			replies += streams[i].in
			t.Logf("testpmd forwarded %d frames from port %d, queue %d", streams[i].out, port, queue)
		}
	}
	proven(t, "F4", "DPDK "+dpdkVersion(k)+" vhost-user",
		"split and packed rings, 1 and 2 queues, MTU 1500 and 9000, behind an IOMMU: %d replies through testpmd, kill -9 and again", replies)
}
