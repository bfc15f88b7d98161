package lab

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ibBootScript is the host that iPXE boots from, over InfiniBand: Debian's opensm assigns addresses to both ports, and
// bootd answers DHCP and TFTP on the kernel's ib_ipoib. opensm sweeps the subnet only until iPXE sends its first
// request: each sweep sets iPXE's port, whose agent does not keep all settings, so that iPXE leaves its group and joins
// it again. At the end iPXE is pinged.
const ibBootScript = ibModules + `
ports() { [ -e $ib/mlx4_0/ports/1/state ] && [ -e /sys/class/net/ib0 ]; }
until_true 300 ports
manage mlx4_0 "-s 0"
need ip addr add 10.9.0.1/24 dev ib0
need ip link set ib0 up
bootd ib0 10.9.0.1 10.9.0.2 /lab/boot.ipxe /lab/$sum >/tmp/asked 2>/tmp/err &
pid=$!
until_true 100 grep -q serving /tmp/asked
say serving
ended() { kill -0 $pid 2>/dev/null || return 0; grep -q 'asked sum-' /tmp/asked; }
rest=3 # longer each time: on a busy machine iPXE may need more than three seconds between two looks to get through
came() {
  kill -HUP $sm
  for s in $(seq $rest); do sleep 1; grep -q '^asked boot' /tmp/asked && return 0; done
  rest=$((rest+1))
  return 1
}
until_true 60 came
until_true 1800 ended
show asked cat /tmp/asked
kill -0 $pid 2>/dev/null || { show failed cat /tmp/err; fail bootd ended; }
say asked $(sed -n 's/^asked \(sum-[^ ]*\) .*/\1/p' /tmp/asked)
for s in 0 56 1000 1472 2016; do until_true 100 /bin/ping -q -c 1 -W 10 -s $s 10.9.0.2; done # it has room for four packets: no flood
say pinged
`

// mlx4IBBoot is rung F4 on InfiniBand: iPXE's own driver, subnet agent and IPoIB on one model, and Linux's on the
// other.
func mlx4IBBoot(t *testing.T) {
	s := newScene(t)
	theirs, host := s.pair(mlx4Card, ibNear, ibFar)
	theirs.foreign = true
	script, sum := sumScript(8000)
	want := fmt.Sprintf("sum-%d", sum)
	end := func() {}
	defer func() { end() }()
	console := logDir(t)
	files := s.programs("bootd")
	files["boot.ipxe"], files[want] = script, []byte("#!ipxe\nsleep 600\n")
	r, err := s.play(Machine{
		Limit: 200 * time.Second, Sockets: []string{host.socket}, Files: files,
		Script: "sum=" + want + "\n" + ibBootScript,
		Say: func(key, text string, _ Result) error {
			switch {
			case key == "serving":
				end = startIPXE(t.Context(), t, s.kit, console, theirs.socket)
			case key == "asked" && text != want:
				return fmt.Errorf("iPXE asked for %q at the end, want %q", text, want)
			case key == "pinged":
				t.Logf("packets: %+v, %+v", ibPackets(theirs), ibPackets(host))
			}
			return nil
		},
	}, "asked", "failed")
	end()
	if err != nil {
		t.Fatalf("%v\niPXE's console:\n%s", err, tail(filepath.Join(console, "console.log")))
	}
	for _, l := range r["asked"] { // above its driver, iPXE treats IPoIB as Ethernet, and its DHCP messages say so
		if strings.HasPrefix(l, "asked boot.ipxe ") && !strings.Contains(l,
			"hardware type 1, 6 bytes of address, broadcast true") {
			t.Errorf("DHCP over IPoIB: %s", l)
		}
	}
	proven(t, "F4", "iPXE, Linux ib_ipoib and Debian's opensm as the peer",
		"IPoIB: DHCP, %d bytes by TFTP, pings up to the MTU", len(script))
}
