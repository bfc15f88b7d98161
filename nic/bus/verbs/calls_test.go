package verbs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// writing is a kernel that writes each call, and answers with the numbers from 1 on.
type writing struct {
	text *strings.Builder
	err  error
}

func (w *writing) Call(object, method uint16, attrs []Attr) error {
	fmt.Fprintf(w.text, "  object %#x, method %#x\n", object, method)
	for i := range attrs {
		a := &attrs[i]
		switch a.Kind {
		case In, Enum:
			fmt.Fprintf(w.text, "    %#x %d: %d, %x\n", a.ID, a.Kind, a.Value, a.Data)
		case FD:
			fmt.Fprintf(w.text, "    %#x %d: a file\n", a.ID, a.Kind)
		default:
			fmt.Fprintf(w.text, "    %#x %d: %d, %d bytes\n", a.ID, a.Kind, a.Value, len(a.Data))
		}
		if w.err != nil {
			continue
		}
		switch a.Kind {
		case Create:
			a.Value = 77
		case Out:
			for k := range a.Data {
				a.Data[k] = byte(k + 1)
			}
		case NewFD:
			var fds [2]int
			if err := unix.Pipe(fds[:]); err != nil {
				return err
			}
			event := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
			unix.Write(fds[1], append(event, 17, 18)) // and a part of another
			unix.Close(fds[1])
			a.Value = int64(fds[0])
		}
	}
	return w.err
}

func (w *writing) Map(key uint64, size int, write bool) ([]byte, error) {
	fmt.Fprintf(w.text, "  map %#x, %d bytes, to write %t\n", key, size, write)
	return make([]byte, min(size, 1<<20)), w.err
}

func (w *writing) Unmap(b []byte) error {
	fmt.Fprintf(w.text, "  unmap %d bytes\n", len(b))
	return w.err
}

func (w *writing) Close() error {
	fmt.Fprintln(w.text, "  close")
	return w.err
}

// Each call as the kernel gets it, and what it returns, also if the kernel refuses it.
func TestCalls(t *testing.T) {
	var text strings.Builder
	k := &writing{text: &text}
	c := &Context{Kernel: k}
	d := DevX{c}
	flow := Flow{MAC: [6]byte{2, 3, 4, 5, 6, 7}, To: netip.MustParseAddr("10.0.0.2")}
	all := flow
	all.From, all.UDP = netip.MustParseAddr("10.0.0.9"), 862
	_, early := c.Event()
	calls := []struct {
		name string
		do   func() (any, error)
	}{
		{"Begin", func() (any, error) { return nil, c.Begin([]byte{1}, make([]byte, 2)) }},
		{"Begin, mlx5", func() (any, error) { return d.Begin(false) }},
		{"Begin, mlx5 with DEVX", func() (any, error) { return d.Begin(true) }},
		{"AllocPD", func() (any, error) { return nil, c.AllocPD(nil) }},
		{"AllocPD, mlx5", func() (any, error) { return d.AllocPD() }},
		{"CreateCQ", func() (any, error) {
			handle, size, err := c.CreateCQ(64, []byte{9}, make([]byte, 3))
			return []uint32{handle, size}, err
		}},
		{"CreateAH", func() (any, error) { return c.CreateAH(netip.MustParseAddr("fe80::1"), make([]byte, 4)) }},
		{"DestroyAH", func() (any, error) { return nil, c.DestroyAH(7) }},
		{"CreateQP", func() (any, error) {
			return c.CreateQP(abi.CreateQP{QPType: QPTypeUD, MaxSendWR: 3}, []byte{8}, make([]byte, 5))
		}},
		{"ModifyQP", func() (any, error) {
			return nil, c.ModifyQP(abi.ModifyQP{QPHandle: 6, QPState: QPStateRTS, AttrMask: QPMaskState |
				QPMaskPKeyIndex | QPMaskPort | QPMaskQKey | QPMaskRNRRetry | QPMaskSQPSN})
		}},
		{"QueryQP", func() (any, error) { return c.QueryQP(6) }},
		{"QueryDevice", func() (any, error) { return c.QueryDevice(make([]byte, 6)) }},
		{"QueryPort", func() (any, error) { return c.QueryPort(2) }},
		{"CreateFlow", func() (any, error) { return nil, c.CreateFlow(6, 1, 5, flow) }},
		{"CreateFlow, of a source and a port", func() (any, error) { return nil, c.CreateFlow(6, 2, 4, all) }},
		{"Query", func() (any, error) { return nil, d.Query([]byte{1, 2}, make([]byte, 7)) }},
		{"EQN", func() (any, error) { return d.EQN() }},
		{"Create", func() (any, error) { return d.Create([]byte{1, 2}, make([]byte, 8)) }},
		{"Modify", func() (any, error) { return nil, d.Modify(5, []byte{3}, make([]byte, 9)) }},
		{"Ask", func() (any, error) { return nil, d.Ask(5, []byte{4}, make([]byte, 9)) }},
		{"RegisterUmem", func() (any, error) { return d.RegisterUmem(0x7000, 4096) }},
		{"Matcher", func() (any, error) { return d.Matcher([]byte{255, 15}, 3, 2) }},
		{"Rule", func() (any, error) { return nil, d.Rule(7, []byte{5}, 6) }},
		{"RuleToQP", func() (any, error) { return nil, d.RuleToQP(7, []byte{5}, 6) }},
		{"AllocUAR", func() (any, error) {
			page, number, err := d.AllocUAR(false)
			return []int{len(page), int(number)}, err
		}},
		{"AllocUAR, combining", func() (any, error) {
			page, number, err := d.AllocUAR(true)
			return []int{len(page), int(number)}, err
		}},
		{"Mapped", func() (any, error) {
			b, err := c.Mapped(9, 4097, false)
			return len(b), err
		}},
	}
	for _, refusal := range []error{nil, unix.EIO, unix.ETIMEDOUT} {
		for _, call := range calls {
			var said strings.Builder
			k.err, k.text = refusal, &said
			got, err := call.do()
			if refusal != nil { // the call itself is the same
				fmt.Fprintf(&text, "%s: %v\n", call.name, err)
				continue
			}
			fmt.Fprintf(&text, "%s\n%s  returns %+v, %v\n", call.name, said.String(), got, err)
		}
	}
	k.text = &text
	k.err = nil
	first, ok := c.Event()
	_, more := c.Event()
	fmt.Fprintf(&text, "events: before Begin %t; %+v, %t, %t\n", early, first, ok, more)
	must.OK(t, c.close())
	golden.Equal(t, "testdata/calls.txt", text.String())
}
