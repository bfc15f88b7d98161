package observe

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestTracking(t *testing.T) {
	const good = "C0A80101,192.168.1.1,3,1763806000.123456789,-0.000012000,0.000001000,0.000030000,-12.345,0.001,0.020,0.000400000,0.000100000,64.5,Normal\n"
	with := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for _, c := range []struct {
		text, wrong string
		want        time.Duration
	}{
		{text: good, want: 12*time.Microsecond + 100*time.Microsecond + 200*time.Microsecond},
		// Output of chronyd 4.3 of Debian 12: with a server, and without any.
		{text: "7F000001,127.0.0.1,9,1795347790.146574652,-0.000001757,-0.000000034,0.000000797,-0.004,-0.001,0.089,0.000006006,0.000002629,1.0,Normal\n", want: 7389},
		{text: "7F7F0101,,8,1795347779.354221478,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,0.000000000,0.000000000,0.0,Normal\n", wrong: "only its own clock"},
		{text: with("Normal", "Insert second"), want: 312 * time.Microsecond},
		{text: with("Normal", "Not synchronised"), wrong: "not synchronised"},
		{text: with("C0A80101", "7F7F0101"), wrong: "only its own clock"},
		{text: "506 Cannot talk to daemon", wrong: "1 fields, expected 14"},
		{text: with("0.000100000", "soon"), wrong: `field 12 is "soon", expected seconds`},
		{text: with("0.000100000", "nan"), wrong: "expected seconds"},
		{text: with("0.000100000", "1e300"), wrong: "an error of 1e+300 s"},
		{text: "", wrong: "1 fields"},
	} {
		b, err := parseTracking(c.text)
		if c.wrong != "" {
			check.Fails(t, c.text, err, nil, c.wrong)
		} else if err != nil || b.Error < c.want || b.Error > c.want+1 {
			t.Errorf("%q: %v, %v, want %v", c.text, b, err, c.want)
		}
	}
}

func TestKernel(t *testing.T) {
	if b, err := fromKernel(unix.TIME_OK, &unix.Timex{Maxerror: 1501, Esterror: 3}, nil); err != nil ||
		b.Error != 1501*time.Microsecond {
		t.Errorf("%v, %v", b, err)
	}
	for _, x := range []struct {
		state int
		t     unix.Timex
		err   error
	}{{unix.TIME_OK, unix.Timex{}, nil}, {unix.TIME_OK, unix.Timex{Maxerror: 1500}, nil},
		{unix.TIME_ERROR, unix.Timex{Maxerror: 1}, nil}, {unix.TIME_OK,
			unix.Timex{Maxerror: 1, Status: unix.STA_UNSYNC}, nil}, {0, unix.Timex{Maxerror: 1}, unix.EPERM}} {
		check.Fails(t, fmt.Sprintf("%+v", x), check.Err(fromKernel(x.state, &x.t, x.err)), nil)
	}
}

func TestRead(t *testing.T) {
	if b, err := Read(3*time.Microsecond, ""); err != nil || b.Error != 3*time.Microsecond ||
		!strings.Contains(b.Source, "-clock-error") {
		t.Errorf("%v, %v", b, err)
	}
	b, err := Read(0, "lo")
	if err == nil != (b.Error > 0 && b.Source != "") || err != nil && !errors.Is(err, errUnknown) {
		t.Errorf("%v, %v", b, err)
	}
	t.Logf("here: %v, %v", b, err)
}

func FuzzTracking(f *testing.F) {
	f.Add("C0A80101,192.168.1.1,3,1763806000.1,-0.000012,0.000001,0.00003,-12.3,0.001,0.02,0.0004,0.0001,64.5,Normal\n")
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := parseTracking(text); err == nil && b.Error <= 0 {
			t.Errorf("%q: %v", text, b)
		}
	})
}
