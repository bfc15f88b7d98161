package nictest

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/sim"
)

// Programmed compares what a driver does from Open with two queues over a few replies to Close with the text in a file:
// see Trace. The text also has the driver's log, and what it says of the device.
func Programmed(t *testing.T, h Harness, path string) {
	t.Helper()
	h.virtual, h.seed = true, 1
	synctest.Test(t, func(t *testing.T) {
		x := newRig(t, h)
		var log bytes.Buffer
		x.log = slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime})
		x.port.StartTrace(1 << 16)
		x.open(min(2, x.h.Queues))
		x.exchange(x.requests(3, 98))
		said := fmt.Sprintf("%+v\n%+v\n%+v\n", x.dev.Info(), x.link(), x.stats())
		x.close()
		golden.Equal(t, path, Trace(x.port)+host.ReplaceAllString(said, "$1")+log.String())
	})
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "took" {
		return slog.Attr{}
	}
	return a
}

// host is a note on the host's memory or processor. process is an address in memory of this process, of a kernel's
// object, or an index or a number of pages that depends on one. offset is the lower part of such an address, which is
// not there if it is 0.
var (
	host    = regexp.MustCompile(` DMA memory in [^]]*|(pushed whole) by [^;]*`)
	process = regexp.MustCompile(`(start_addr=7|db_record_addr=|mtt_base_addr_l=|num_of_mtt=)[0-9a-f]+`)
	offset  = regexp.MustCompile(` page_offset=[0-9a-f]+`)
)

// Trace lists what a driver wrote since the port's StartTrace, register by register and command by command, in order.
// Successive values of one register are on one line. Reads are left out, because their number depends on the device's
// speed, and stores through pointers, which the model sees some time later. Addresses are the same in each run if the
// port has a seed.
func Trace(port *sim.Port) string {
	var b strings.Builder
	last := ""
	for _, e := range port.Trace().Events {
		s := offset.ReplaceAllString(process.ReplaceAllString(e.String(), "$1*"), "")
		register, value, _ := strings.Cut(s, " = ")
		switch {
		case strings.HasPrefix(s, "read"), strings.HasPrefix(s, "stores"):
			continue
		case strings.HasPrefix(s, "write") && register == last:
			b.WriteString(" " + value)
		default:
			b.WriteString("\n" + s)
		}
		last = register
	}
	return b.String()[1:] + "\n"
}

// Probed compares what a driver asks a device only for a probe's file with the text in a file.
func Probed(t *testing.T, h Harness, path string) {
	t.Helper()
	h.virtual, h.seed = true, 1
	observer, asked := Asked()
	open := h.Open
	h.Open = func(fn pci.Function, o nic.Options) (nic.Device, error) {
		return open(cmdtrace.Observe(fn, observer), o)
	}
	synctest.Test(t, func(t *testing.T) {
		x := newRig(t, h)
		x.open(1)
		x.close()
	})
	golden.Equal(t, path, asked())
}

// Asked returns an observer that writes down what a driver asks a device only for a probe's file. Of successive reads
// of one register, whose number depends on the device's speed, the text has the last. Of a device that has commands it
// has only these.
func Asked() (o cmdtrace.Observer, text func() string) {
	var lines, commands []string
	last, step := "", ""
	o.Before = func(name string) error { step = name; return nil }
	o.Seen = func(e cmdtrace.Entry) {
		what := e.Kind + " " + e.Name
		switch {
		case !strings.Contains(step, "for the probe") || e.Kind == cmdtrace.Step:
			return
		case e.Kind == cmdtrace.Command:
			commands = append(commands, fmt.Sprintf("%s, op_mod %d, modifier %#x, status %d: %x\n", what, e.OpMod,
				e.Modifier, e.Status, bytes.TrimRight(e.In, "\x00")))
		case what == last && e.Kind == cmdtrace.Read:
			lines = lines[:len(lines)-1]
			fallthrough
		default:
			lines = append(lines, fmt.Sprintf("%s %d %#x: %#x\n", what, e.Width, e.Modifier, e.Value))
		}
		last = what
	}
	return o, func() string {
		if commands != nil {
			return strings.Join(commands, "")
		}
		return strings.Join(lines, "")
	}
}
