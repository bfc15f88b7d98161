package sim

import (
	"encoding/binary"
	"fmt"
	"io"
	"iter"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// Namer is a model that knows the names of its registers. Traces and violations use them.
type Namer interface {
	// RegisterName returns the datasheet's name of the register at off in a BAR, "" for none, and its byte order.
	RegisterName(bar int, off uint64) (string, binary.ByteOrder)
}

// Kind is the kind of an Event.
type Kind uint8

const (
	readEvent      Kind = iota // of a BAR
	writeEvent                 // to a BAR
	storesEvent                // through pointers into a BAR; Value is their number
	configEvent                // a write to configuration space
	commandEvent               // that the device executed, Value is its status
	busMasterEvent             // Value is 1 for on
	resetEvent                 // of the function
	interruptEvent             // Value is the vector
	violationEvent             // Name is its text
)

func (k Kind) String() string {
	return [...]string{"read", "write", "stores", "config", "command", "bus-master", "reset", "interrupt",
		"violation"}[k]
}

// Event is one action of a driver or of the device.
type Event struct {
	At     time.Duration // the device's clock at the first of Times
	Kind   Kind
	BAR    int
	Off    uint64
	Size   int // bytes of a read or write
	Value  uint64
	Times  int    // number of equal events in a row
	Name   string // register, command, or text of the violation; "" for a register without a name
	Fields []Field
}

// Field is a field of a command and its value.
type Field struct {
	Name  string
	Value uint64
}

// String returns the event on one line, without its time.
func (e *Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s", e.Kind)
	switch e.Kind {
	case readEvent, writeEvent:
		fmt.Fprintf(&b, " %s = %0*xh", register(e.Name, e.BAR, e.Off), 2*e.Size, e.Value)
	case configEvent:
		fmt.Fprintf(&b, " %s = %0*xh", e.Name, 2*e.Size, e.Value)
	case commandEvent:
		fmt.Fprintf(&b, " %s, status %xh:", e.Name, e.Value)
		for _, f := range e.Fields {
			if f.Value != 0 {
				fmt.Fprintf(&b, " %s=%x", f.Name, f.Value)
			}
		}
	case violationEvent:
		b.WriteString(" " + e.Name)
	case storesEvent, busMasterEvent, interruptEvent:
		fmt.Fprintf(&b, " %d", e.Value)
	}
	if e.Times > 1 {
		fmt.Fprintf(&b, " (%d times)", e.Times)
	}
	return b.String()
}

// register formats a register by its name, if it has one, and its offset.
func register(name string, bar int, off uint64) string {
	if name == "" {
		return fmt.Sprintf("BAR %d %05xh", bar, off)
	}
	return fmt.Sprintf("%s (BAR %d %05xh)", name, bar, off)
}

// Setting is a register that a driver wrote, or a field of a command, with its last value. Memory that a driver may
// write through pointers (doorbells, pushed frames) is excluded.
type Setting struct {
	Name  string
	Value uint64
	Times int // how often it was written
}

// Trace is what a port recorded of a driver.
type Trace struct {
	Port     string
	Events   []Event   // the last ones, oldest first
	Lost     int       // number of earlier events, which were dropped
	Before   []Event   // the first violation and the events before it; nil without one
	Settings []Setting // since the last reset that was followed by any, in the order of their first write
}

// beforeViolation is the number of events that a trace keeps from before the first violation.
const beforeViolation = 50

// recorder records a Trace.
type recorder struct {
	ring     []Event
	n        int // events so far
	before   []Event
	settings map[settingKey]*setting
	order    []settingKey
	stale    bool // the function was reset since
}

type settingKey struct {
	bar  int
	off  uint64
	name string // of a command's field, with the command's name; bar and off are then zero
}

type setting struct {
	value uint64
	size  int
	times int
}

// StartTrace makes the port record its last n accesses and events, and what the driver has programmed. It costs each
// access some hundred nanoseconds. It discards an earlier trace.
func (p *Port) StartTrace(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rec = &recorder{ring: make([]Event, 0, n)}
	p.rec.settings = map[settingKey]*setting{}
}

// Trace returns the record since StartTrace, which must have been called.
func (p *Port) Trace() *Trace {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rec
	t := &Trace{Port: p.Name(), Events: p.named(r.last(len(r.ring))), Lost: r.n - len(r.ring),
		Before: p.named(slices.Clone(r.before))}
	for _, k := range r.order {
		w := r.settings[k]
		s := Setting{Name: k.name, Value: w.value, Times: w.times}
		if s.Name == "" {
			var order binary.ByteOrder
			if s.Name, order = p.registerName(k.bar, k.off); s.Name == "" {
				s.Name = register("", k.bar, k.off)
			}
			s.Value = number(order, w.value, w.size)
		}
		t.Settings = append(t.Settings, s)
	}
	return t
}

// named adds names, which is too slow to do while recording.
func (p *Port) named(events []Event) []Event {
	for i := range events {
		switch e := &events[i]; e.Kind {
		case readEvent, writeEvent:
			var order binary.ByteOrder
			e.Name, order = p.registerName(e.BAR, e.Off)
			e.Value = number(order, e.Value, e.Size)
		case configEvent:
			e.Name = configName(int(e.Off))
		}
	}
	return events
}

// number converts v, which was read as little endian, to the byte order of the register.
func number(order binary.ByteOrder, v uint64, size int) uint64 {
	if order == binary.BigEndian {
		return bits.ReverseBytes64(v) >> (64 - 8*size)
	}
	return v
}

// registerName returns the model's name of a register, or the name of an MSI-X table entry.
func (p *Port) registerName(bar int, off uint64) (string, binary.ByteOrder) {
	if i := off - uint64(p.conf.MSIXTable); bar == p.conf.MSIXBAR && off >= uint64(p.conf.MSIXTable) &&
		i < uint64(len(p.msix)) {
		return fmt.Sprintf("MSI-X[%d].%s", i/16, [...]string{"address", "address_high", "data", "control"}[i%16/4]),
			binary.LittleEndian
	}
	if n, ok := p.model.(Namer); ok {
		return n.RegisterName(bar, off)
	}
	return "", binary.LittleEndian
}

func configName(off int) string {
	switch {
	case off == offCommand:
		return "Command"
	case off >= offBAR0 && off < offBAR0+24:
		return fmt.Sprintf("BAR %d", (off-offBAR0)/4)
	case off == offMSIX+2:
		return "MSI-X Message Control"
	case off == offMSI+2:
		return "MSI Message Control"
	case off == offVPD+2:
		return "VPD Address"
	case off == offPM+4:
		return "PMCSR"
	case off == offPCIe+8:
		return "Device Control"
	}
	return fmt.Sprintf("%03xh", off)
}

// last returns a copy of the last n events, oldest first.
func (r *recorder) last(n int) []Event {
	n = min(n, len(r.ring))
	out := make([]Event, 0, n)
	for i := r.n - n; i < r.n; i++ {
		out = append(out, r.ring[i%cap(r.ring)])
	}
	return out
}

func (r *recorder) add(e Event) {
	if last := r.newest(); last != nil && last.Kind == e.Kind && last.BAR == e.BAR && last.Off == e.Off &&
		last.Size == e.Size &&
		last.Value == e.Value && last.Name == e.Name && slices.Equal(last.Fields, e.Fields) {
		last.Times++
		return
	}
	e.Times = 1
	if len(r.ring) < cap(r.ring) {
		r.ring = append(r.ring, e)
	} else {
		r.ring[r.n%cap(r.ring)] = e
	}
	r.n++
}

func (r *recorder) newest() *Event {
	if r.n == 0 {
		return nil
	}
	return &r.ring[(r.n-1)%cap(r.ring)]
}

func (r *recorder) set(k settingKey, v uint64, size int) {
	if r.stale {
		r.settings, r.order, r.stale = map[settingKey]*setting{}, nil, false
	}
	s := r.settings[k]
	if s == nil {
		s = new(setting)
		r.settings[k] = s
		r.order = append(r.order, k)
	}
	s.value, s.size, s.times = v, size, s.times+1
}

// access records one read or write of a BAR.
func (p *Port) access(k Kind, bar int, off uint64, b []byte) {
	v := little(b)
	p.event(Event{Kind: k, BAR: bar, Off: off, Size: len(b), Value: v})
	if k == writeEvent && !p.polled(bar, off, uint64(len(b))) {
		p.rec.set(settingKey{bar: bar, off: off}, v, len(b))
	}
}

// configured records a write to configuration space. was is the Command register before it.
func (p *Port) configured(off int, b []byte, was uint16) {
	p.event(Event{Kind: configEvent, Off: uint64(off), Size: len(b), Value: little(b)})
	if is := p.space.command(); (is^was)&cmdBusMaster != 0 {
		p.event(Event{Kind: busMasterEvent, Value: uint64(is&cmdBusMaster) / cmdBusMaster})
	}
}

func little(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}

// command records a command that the device executed. A failed command programs nothing.
func (p *Port) command(name string, status uint8, fields iter.Seq2[string, uint64]) {
	e := Event{Kind: commandEvent, Name: name, Value: uint64(status)}
	for field, v := range fields {
		e.Fields = append(e.Fields, Field{field, v})
		if status == 0 {
			p.rec.set(settingKey{name: name + "." + field}, v, 8)
		}
	}
	p.event(e)
}

// event records one event.
func (p *Port) event(e Event) {
	e.At = p.now()
	p.rec.add(e)
}

// where formats a register for a violation.
func (p *Port) where(bar int, off uint64) string {
	name, _ := p.registerName(bar, off)
	return register(name, bar, off)
}

// written formats a value, in the byte order of its register, and the register's name.
func (p *Port) written(bar int, off uint64, b []byte) string {
	name, order := p.registerName(bar, off)
	return fmt.Sprintf("%0*x to %s", 2*len(b), number(order, little(b), len(b)), register(name, bar, off))
}

// WriteTo writes the trace as text: one line per event with its time in seconds, then the settings.
func (t *Trace) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	list := func(events []Event) {
		for i := range events {
			fmt.Fprintf(&b, "%12.6f %s\n", events[i].At.Seconds(), &events[i])
		}
	}
	fmt.Fprintf(&b, "# %s: the last %d events, %d before them are lost\n", t.Port, len(t.Events), t.Lost)
	list(t.Events)
	if len(t.Before) > 0 {
		fmt.Fprintf(&b, "# %s: what led to the first violation\n", t.Port)
		list(t.Before)
	}
	fmt.Fprintf(&b, "# %s: what was programmed since the last reset that was followed by any, in order of the first write\n", t.Port)
	for _, s := range t.Settings {
		fmt.Fprintf(&b, "%s = %xh\n", s.Name, s.Value)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// Difference is a register, or a field of a command, that two drivers programmed differently.
type Difference struct {
	Name string
	A, B uint64
}

// Compare compares what two drivers programmed into the same kind of device. differ lists, in the order of a's first
// write, what both wrote and left with different values. onlyA and onlyB list what only one of them wrote. A difference
// is not a defect by itself: a polling driver masks what another unmasks, and addresses always differ.
func Compare(a, b *Trace) (differ []Difference, onlyA, onlyB []string) {
	in := func(t *Trace) map[string]uint64 {
		m := map[string]uint64{}
		for _, s := range t.Settings {
			m[s.Name] = s.Value
		}
		return m
	}
	left, right := in(a), in(b)
	for _, s := range a.Settings {
		switch v, both := right[s.Name]; {
		case !both:
			onlyA = append(onlyA, s.Name)
		case v != s.Value:
			differ = append(differ, Difference{s.Name, s.Value, v})
		}
	}
	for _, s := range b.Settings {
		if _, both := left[s.Name]; !both {
			onlyB = append(onlyB, s.Name)
		}
	}
	return differ, onlyA, onlyB
}
