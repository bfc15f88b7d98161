package cmdtrace_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// A ring keeps the last entries, oldest first, and the first 64 bytes of refused commands.
func TestRing(t *testing.T) {
	var r cmdtrace.Ring
	request := make([]byte, 100)
	for n := range 3*cmdtrace.Size + 5 {
		request[0] = byte(n)
		r.Add(cmdtrace.Entry{Kind: cmdtrace.Command, Name: fmt.Sprint(n), Status: uint32(n % 2), In: request,
			Out: request})
	}
	all := r.Entries()
	must.Equal(t, len(all), cmdtrace.Size, "%d entries")
	for i, e := range all {
		n := 2*cmdtrace.Size + 5 + i
		kept := 64 * (n % 2)
		if e.Name != fmt.Sprint(n) || len(e.In) != kept || len(e.Out) != 0 || kept > 0 && e.In[0] != byte(n) {
			t.Errorf("entry %d is %v with %d and %d bytes, want number %d with %d", i, e, len(e.In), len(e.Out), n,
				kept)
		}
	}
}

func TestFollow(t *testing.T) {
	var r cmdtrace.Ring
	var got []cmdtrace.Entry
	r.Follow(func(e cmdtrace.Entry) { got = append(got, e) })
	r.Add(cmdtrace.Entry{Kind: cmdtrace.Command, Name: "long", In: make([]byte, 100), Out: make([]byte, 4096)})
	r.Register(true, "BAR0", 8, 1, 4)
	if len(got) != 1 || len(got[0].In) != 100 || len(got[0].Out) != 4096 {
		t.Errorf("followed %d entries: %v", len(got), got)
	}
	check.Equal(t, len(r.Entries()), 2, "the ring has %d entries")
}

func TestEntryIsTheSameAfterJSON(t *testing.T) {
	e := cmdtrace.Entry{At: 5, Kind: cmdtrace.Command, Name: "X", Opcode: 1, OpMod: 2, Modifier: 3, Status: 4,
		Syndrome: 5, In: cmdtrace.Bytes{1, 0xAB}, Err: "e"}
	text, err := json.Marshal(e)
	if err != nil || !strings.Contains(string(text), `"01ab"`) {
		t.Fatalf("%s, %v", text, err)
	}
	var back cmdtrace.Entry
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(e, back) {
		t.Errorf("%+v, %v", back, err)
	}
}

// Observed functions report each access to a register, repeated reads once with their number, and each operation on the
// function.
func TestObserve(t *testing.T) {
	port := must.Get(sim.New(toysim.New([6]byte{2, 0, 0, 0, 0, 1}), sim.Options{Name: "toy"}))(t)
	defer port.Close()
	inner := must.Get(port.Function())(t)
	var got []string
	refuse := errors.New("no further")
	fn := cmdtrace.Observe(inner, cmdtrace.Observer{
		Seen: func(e cmdtrace.Entry) {
			got = append(got, fmt.Sprintf("%s %s %x*%d", e.Kind, e.Name, e.Value, e.Times))
		},
		Before: func(step string) error { return refuse },
	})
	defer fn.Close()
	if cmdtrace.Of(fn) != fn || cmdtrace.Of(inner) != nil {
		t.Error("Of does not tell what is observed")
	}
	check.Fails(t, "before a step", cmdtrace.Of(fn).Before("x"), refuse)
	check.OK(t, cmdtrace.Of(inner).Before("x")) // not traced
	w := must.Get(fn.BAR(0))(t)
	v := w.Read32(0)
	w.Read32(0)
	w.Read32(0)
	w.Write32(0, 0)
	fn.Quietly(func() { w.Read32(4); w.Write32(4, 1) })
	fn.SetBusMaster(true)
	w.Read32(0)
	fn.Flush()
	want := []string{"config map BAR0: 0x4000 bytes, uncached", fmt.Sprintf("read BAR0+0x0 %x*3", v),
		"write BAR0+0x0 0*0", "config bus mastering true 0*0", "read BAR0+0x0"}
	if len(got) != len(want) {
		t.Fatalf("saw %q, want %q", got, want)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("saw %q, want %q", got[i], want[i])
		}
	}
}
