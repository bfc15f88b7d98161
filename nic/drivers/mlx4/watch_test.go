package mlx4

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// watched is an open device with one queue pair, and its log.
func watched(t testing.TB) (*script, *Device, *bytes.Buffer) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	t.Cleanup(func() { check.OK(t, d.Close()) })
	log := new(bytes.Buffer)
	d.card.Log = slog.New(slog.NewTextHandler(log, nil))
	return s, d, log
}

// raise adds an event.
func (d *Device) raise(kind, sub byte, data []byte) {
	e := d.events.mem[d.events.next%eqEntries*eqeSize:]
	e[eqeType], e[eqeSubtype], e[eqeOwner] = kind, sub, byte(d.events.next/eqEntries&1<<7)
	copy(e[eqeData:], data)
}

// Each fault is seen by the next check, or by the first one after its limit. Ten checks take a second.
func TestWatch(t *testing.T) {
	hangs := func(d *Device) { d.queues[0].askTail = 1 }
	event := func(kind, sub byte, data []byte) func(*script, *Device) {
		return func(_ *script, d *Device) { d.raise(kind, sub, data) }
	}
	for name, c := range map[string]struct {
		spoil func(*script, *Device)
		count string // what is counted
		want  string // the number of the check, the reason, and why; or the log
	}{
		"nothing":       {func(*script, *Device) {}, "", "nothing"},
		"send error":    {func(_ *script, d *Device) { d.queues[0].fail(&cqe{}, faultSend) }, "", "1 send_error queue 0: send completion is not what is due"},
		"receive error": {func(_ *script, d *Device) { d.queues[0].fail(&cqe{}, faultReceive) }, "", "1 receive_error queue 0: receive completion is not"},
		"send hangs":    {func(_ *script, d *Device) { hangs(d) }, "", "20 tx_hang queue 0: device did not answer in time: no send was completed for 2s (completion 0)"},
		"link is down": {func(s *script, d *Device) {
			hangs(d)
			s.answer = func(c sent) (Status, mailbox, uint64) {
				st, m, v := card(c)
				if c.op == opQueryPort {
					m.set8(0, portEth)
				}
				return st, m, v
			}
		}, "", "nothing"},
		"catastrophe": {func(s *script, d *Device) { s.catas = 0xBAD0 }, "", "1 catastrophic_error the firmware died: buffer of catastrophic errors 0000bad0"},
		"CQ error":    {event(eventCQError, 0, []byte{0xFF, 0, 0, 0x81, 11: 7}), "cq_errors", "1 cq_error error event of completion queue 0x81, syndrome 0x07"},
		"WQ error":    {event(eventWQCatas, 0, []byte{0xFF, 0, 1, 2}), "queue_errors", "1 queue_error error event 0x05 of QP 0x102"},
		"invalid WQE": {event(eventWQInvalid, 0, nil), "queue_errors", "1 queue_error error event 0x10 of QP 0xeeeeee"},
		"access":      {event(eventWQAccess, 0, nil), "queue_errors", "1 queue_error error event 0x11 of QP 0xeeeeee"},
		"internal":    {event(eventLocalCatas, 0, nil), "", "1 internal_error the device reports an internal error: its buffer of catastrophic errors is empty"},
		"ECC":         {event(eventECC, 0, nil), "", `"the device found a memory error (ECC)"`},
		"hot":         {event(eventFatalWarn, 0, []byte{0, 105, 0, 100}), "", `"the card is hot" celsius=105 threshold=100`},
		"unknown":     {event(0x77, 3, nil), "unknown_events", `"unknown event" type=119 subtype=3`},
		"link up":     {event(eventPortChange, portActive, []byte{8: 1 << 4}), "port_changes", "link port=1 up=true"},
		"other port":  {event(eventPortChange, portDown, []byte{8: 2 << 4}), "", "nothing"},
		"other state": {event(eventPortChange, 2, []byte{8: 1 << 4}), "port_changes", "nothing"},
	} {
		s, d, log := watched(t)
		taken := d.events.next
		c.spoil(s, d)
		var y *kit.Symptom
		n := 0
		for y == nil && n < 30 {
			n++
			y = must.Get(d.check(true))(t)
		}
		_, got, logged := strings.Cut(strings.TrimSpace(log.String()), "msg=")
		if y != nil {
			got = fmt.Sprint(n, " ", y.Reason, " ", y.Why)
			check.Equal(t, y.Recover != nil, y.Reason == "send_error" || y.Reason == "tx_hang", name+": recovers: %t")
		} else if !logged {
			got = "nothing"
		}
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "msg=") {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		e := &d.events
		for kind, n := range map[string]uint64{"cq_errors": e.cqErrors.Load(), "port_changes": e.portChanges.Load(),
			"queue_errors": e.queueErrors.Load(), "unknown_events": e.unknown.Load()} {
			check.Equal(t, n, map[bool]uint64{true: 1}[kind == c.count], name+": %d "+kind)
		}
		if d.events.next != taken {
			at := d.events.number/4*uarPage + uarEQ + 8*(d.events.number%4)
			check.Equal(t, *(*uint32)(unsafe.Pointer(&s.bar2[at])), swap(taken+1), name+": events given back: %#x")
		}
		s.catas, s.answer = 0, nil
	}
}

// A send queue that hangs or failed is reset and started again, with doorbells if nothing pushed has ever been sent.
func TestResetSend(t *testing.T) {
	for _, c := range []struct {
		fault uint32
		taken uint32 // completions
		given uint32 // and those after them
		fails opcode
		flame bool
		want  string
	}{
		{faultNone, 0, 1, 0, false, "2RST_QP RST2INIT_QP INIT2RTR_QP RTR2RTS_QP <nil>"},
		{faultNone, 1, 0, 0, true, "2RST_QP RST2INIT_QP INIT2RTR_QP RTR2RTS_QP <nil>"},
		{faultSend, 0, 0, 0, true, "2RST_QP RST2INIT_QP INIT2RTR_QP RTR2RTS_QP <nil>"},
		{faultSend, 1, 1, op2RST, true, "2RST_QP script: 2RST_QP"},
		{faultSend, 1, 1, opRTR2RTS, true, "2RST_QP RST2INIT_QP INIT2RTR_QP RTR2RTS_QP script: RTR2RTS_QP"},
	} {
		s, d, _ := watched(t)
		q := d.queues[0]
		for range 2 {
			must.OK(t, q.send(make([]byte, 64)))
		}
		q.fault.Store(c.fault)
		*q.pending(5), q.txNext, q.askTail = 77, c.taken, 2
		for i := range c.given {
			q.completion(q.txCQ, c.taken+i).last = done(kindSend|wqeSend, 0, c.taken+i, q.txShift)
		}
		got := ""
		s.answer = func(c2 sent) (Status, mailbox, uint64) {
			got += strings.Fields(c2.op.String())[0] + " "
			check.Equal(t, c2.modifier, q.txQPN, "queue pair %#x")
			if c2.op == c.fails {
				return 3, nil, 0
			}
			return card(c2)
		}
		d.sends[0].StalledFor(1)
		err := d.recoverSends(q, &d.sends[0])
		s.answer = nil
		if got += fmt.Sprint(err); !strings.HasPrefix(strings.ReplaceAll(got, "mlx4 ", ""), c.want) {
			t.Errorf("%+v: %s", c, got)
		}
		check.Equal(t, d.sendRecoveries.Load() == 1, err == nil, "counted: %t")
		if err == nil {
			check.Equal(t, q.bf != nil, c.flame, fmt.Sprintf("%+v: BlueFlame: %%t", c))
			check.Equal(t, [4]uint32{q.txTail, q.txNext, q.askTail, *q.pending(5)}, [4]uint32{0, c.taken + c.given,
				c.taken + c.given, 0},
				"blocks, completions taken and asked for, and what a slot waits for: %d")
			check.Equal(t, *q.txCQRec, swap(c.taken+c.given), "completions given back: %#x")
			check.Equal(t, d.sends[0], kit.Progress{}, "%+v")
		}
	}
}
