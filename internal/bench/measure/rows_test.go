package measure

import (
	"flag"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/rows"
)

// Each row is a flag and a key of -ab. It accepts the completed values, rejects others, and changes only itself.
func TestRows(t *testing.T) {
	s := Default()
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	free := []string{"iface", "target", "stamp-tlv"} // the row alone cannot reject any text
	rows := setting.New(s.Rows()...)
	for i := range rows.Settings {
		rows.Settings[i].AddFlag(fs)
	}
	for _, name := range rows.Flags() {
		r := rows.ByFlag(name)
		if usage := fs.Lookup(name).Usage; r.Arg != "" && !strings.Contains(usage, "`"+r.Arg+"`") {
			t.Errorf("-%s: its help does not name %s: %q", name, r.Arg, usage)
		}
		for _, v := range r.Values() {
			check.OK(t, s.Set(name, v)) // what is completed is accepted
		}
		if err := s.Set(name, "?"); err == nil && !slices.Contains(free, name) || err != nil &&
			!strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("-%s ? gives %v", name, err)
		}
	}
	for _, c := range []struct{ key, value, want string }{
		{"dscp", "64", "dscp: 64 is not 0 to 63"},
		{"vlan", "4095", "vlan: 4095 is not 1 to 4094; 0 is no tag"},
		{"proto", "tcp", `proto: "tcp" is not one of icmp, udp, stamp, ud, srd, stamp-ud, stamp-srd`},
		{"what", "1", `unknown setting "what": -ab accepts do, explain, name, target, proto, `},
	} {
		check.Fails(t, c.key, s.Set(c.key, c.value), nil, c.want)
	}
	a := Default()
	for _, set := range []string{"target=10.0.0.2", "rate=20k", "size=100", "dscp=46", "stamp-zero-ssid=stop",
		"timeout=2s"} {
		name, value, _ := strings.Cut(set, "=")
		must.OK(t, a.Set(name, value))
	}
	want := Default()
	want.Target, want.Rates, want.Sizes, want.DSCP, want.STAMP.StopAtZero, want.Timeout = a.Target, []float64{20e3},
		[]int{100}, 46, true, 2e9
	if !reflect.DeepEqual(a, want) || !a.Target.Is4() {
		t.Errorf("got %+v\nwant %+v", a, want)
	}
}

func TestEveryRowRoundTrips(t *testing.T) {
	rows.RoundTrip(t, func() (*setting.Table, func() string) {
		s := Default()
		return setting.New(s.Rows()...), func() string { return fmt.Sprintf("%+v", s) }
	}, "testdata/settings.txt")
}
