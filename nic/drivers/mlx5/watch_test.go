package mlx5

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// watched is a device that the test plays, with an event queue and one queue pair.
type watched struct {
	*scripted
	d     *Device
	q     *benchQueue
	log   bytes.Buffer
	still bool // the health counter stalls
	vport byte // state in QUERY_VPORT_STATE
}

func newWatched(t testing.TB) *watched {
	w := &watched{vport: 1}
	w.scripted, w.d = startedFirmware(t)
	w.d.card.Log = slog.New(slog.NewTextHandler(&w.log, nil))
	must.OK(t, w.d.createEQ())
	w.q = newBenchQueue(t, rig.Echo(64), true)
	w.d.queues, w.d.sends = []*Queue{w.q.Queue}, make([]kit.Progress, 1)
	w.answer = func(in message, size int) message {
		out := make(message, size)
		if in.opcode() == opQueryVport {
			out[0x0F] = w.vport
		}
		return out
	}
	return w
}

// raise adds an event.
func (w *watched) raise(kind, sub byte) {
	e := w.d.events.mem[w.d.events.next*eqeSize:]
	e[eqeType], e[eqeSubtype], e[eqeOwner] = kind, sub, 0
}

// Each fault is seen by the next check, or by the first one after its limit. Ten checks take a second.
func TestWatch(t *testing.T) {
	const sick, down = 0x0A<<16 | 0x1234, "health syndrome 0x0a ICM fetch PCI error, extended 0x1234, reset required "
	for name, c := range map[string]struct {
		spoil func(w *watched)
		want  string // the number of the check, the reason, and why; the log
	}{
		"nothing":       {func(w *watched) {}, "nothing"},
		"send error":    {func(w *watched) { w.q.fail(&cqe{}, faultSend) }, "1 send_error queue 0: send completion is not what is due"},
		"receive error": {func(w *watched) { w.q.fail(&cqe{}, faultReceive) }, "1 receive_error queue 0: receive completion is not"},
		"send hangs":    {func(w *watched) { w.q.askTail, w.d.sends[0] = 1, kit.Progress{} }, "20 tx_hang queue 0: device did not answer in time: no send was completed for 2s (completion 0)"},
		"link is down":  {func(w *watched) { w.q.askTail, w.vport = 1, 0 }, "nothing"},
		"disabled":      {func(w *watched) { w.put(regCmdqAddrLow, nicDisabled<<8) }, "1 disabled the function's interface is disabled: health syndrome 0x00"},
		"sick":          {func(w *watched) { w.put(regHealthSynd, sick); w.put(regHealthRFR, healthRFR) }, "1 firmware_error the device is sick: " + down + "true"},
		"fault":         {func(w *watched) { w.put(regHealthSynd, sick) }, `0 "the device reports a fault" health="` + down + "false"},
		"hangs":         {func(w *watched) { w.still = true }, "101 firmware_hang the health counter has not moved for 10s: health syndrome 0x00"},
		"fault, hangs":  {func(w *watched) { w.still = true; w.put(regHealthSynd, sick) }, "11 firmware_hang the health counter has not moved for 1s: " + down + "false"},
		"CQ error":      {func(w *watched) { w.raise(eventCQError, 0) }, "1 cq_error completion queue error event"},
		"internal":      {func(w *watched) { w.raise(eventInternal, 0) }, "1 internal_error the device reports an internal error: health syndrome"},
		"unknown":       {func(w *watched) { w.raise(0x77, 3) }, `0 "unknown event" type=119 subtype=3`},
		"link up":       {func(w *watched) { w.raise(eventPortChange, portActive) }, "0 link up=true"},
		"stuck":         {func(w *watched) { err := nic.ErrTimeout; w.d.commands.dead.Store(&err) }, "1 command_stuck device did not answer in time"},
		"stuck, sick": {func(w *watched) {
			err := nic.ErrTimeout
			w.d.commands.dead.Store(&err)
			w.put(regHealthSynd, sick)
			w.put(regHealthRFR, healthRFR)
		}, "1 firmware_error the device is sick"},
	} {
		w := newWatched(t)
		c.spoil(w)
		var s *kit.Symptom
		n := 0
		for s == nil && n < 120 {
			if n++; !w.still {
				w.put(regHealthCounter, uint32(n))
			}
			s = must.Get(w.d.check(true))(t)
		}
		e := &w.d.events
		for kind, n := range map[string]uint64{"CQ error": e.cqErrors.Load(), "unknown": e.unknown.Load(),
			"link up": e.portChanges.Load()} {
			check.Equal(t, n == 1, kind == name, name+": counted as "+kind+": %t")
		}
		_, got, logged := strings.Cut(w.log.String(), "msg=")
		got = "0 " + got
		if s == nil && !logged {
			got = "nothing"
		} else if s != nil {
			got = fmt.Sprintln(n, s.Reason, s.Why)
			check.Equal(t, s.Recover != nil, s.Reason == "send_error" || s.Reason == "tx_hang", name+": recovers: %t")
		}
		if !strings.HasPrefix(got, c.want) || strings.Contains(got, "msg=") {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A send queue is reset from any state. In error the device gives back all that was posted, whatever its length.
func TestResetSend(t *testing.T) {
	for _, c := range []struct {
		state uint32
		given int    // completions in error
		fails opcode // this command is refused
		at    int    // the one of that kind
		want  string // commands with the state before and after, and the error
	}{
		{stateRDY, 2, 0, 0, "QUERY_SQ MODIFY_SQ:1>3 MODIFY_SQ:3>0 MODIFY_SQ:0>1 <nil>"},
		{stateERR, 2, 0, 0, "QUERY_SQ MODIFY_SQ:3>0 MODIFY_SQ:0>1 <nil>"},
		{stateRST, 0, 0, 0, "QUERY_SQ MODIFY_SQ:0>1 <nil>"},
		{stateRDY, 1, 0, 0, "QUERY_SQ MODIFY_SQ:1>3 device did not answer in time: the send queue in error did not give WQE 3 back within 1s"},
		{stateRDY, 2, opQuerySQ, 0, "QUERY_SQ mlx5 script: QUERY_SQ"},
		{stateRDY, 2, opModifySQ, 0, "QUERY_SQ MODIFY_SQ:1>3 mlx5 script: MODIFY_SQ"},
		{stateRDY, 2, opModifySQ, 1, "QUERY_SQ MODIFY_SQ:1>3 MODIFY_SQ:3>0 mlx5 script: MODIFY_SQ"},
		{stateRDY, 2, opModifySQ, 2, "QUERY_SQ MODIFY_SQ:1>3 MODIFY_SQ:3>0 MODIFY_SQ:0>1 mlx5 script: MODIFY_SQ"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, got, seen := newWatched(t), "", map[opcode]int{}
			q := w.q.Queue
			for _, n := range []int{150, 64} { // of three blocks and two
				must.OK(t, q.send(make([]byte, n)))
			}
			*q.pending(5), q.txAsked = 77, 5
			for i := range c.given {
				*q.completion(q.txCQ, uint32(i)) = cqe{counterOwn: cqeOpReqErr<<28 | uint32(3*i)<<8}
			}
			w.answer = func(in message, size int) message {
				out := make(message, size)
				got += strings.Fields(in.opcode().String())[0]
				if in.opcode() == opModifySQ {
					got += fmt.Sprintf(":%d>%d", in.get(0x08, 31, 28), in.at(0x20).get(0, 23, 20))
				}
				got += " "
				if in.opcode() == c.fails && seen[c.fails] == c.at {
					out[0] = 3
				}
				seen[in.opcode()]++
				check.Equal(t, in.get(0x08, 23, 0), q.sqn, "queue %#x")
				if in.opcode() == opQuerySQ {
					out.set("state", 0x20, 23, 20, c.state)
				}
				return out
			}
			w.d.sends[0].StalledFor(1)
			err := w.d.recoverSends(q, &w.d.sends[0])
			if got += fmt.Sprint(err); !strings.HasPrefix(got, c.want) {
				t.Errorf("%+v: %s", c, got)
			}
			check.Equal(t, w.d.sendRecoveries.Load() == 1, err == nil, "counted: %t")
			if err == nil {
				check.Equal(t, [4]uint32{q.txTail, q.txNext, q.askTail, *q.pending(5)}, [4]uint32{0, uint32(c.given),
					uint32(c.given), 0}, "blocks, completions taken and asked for, and what a slot waits for: %d")
				check.Equal(t, w.q.records[3], swap(uint32(c.given)), "completions given back: %#x")
				check.Equal(t, w.d.sends[0], kit.Progress{}, "%+v")
			}
		})
	}
}
