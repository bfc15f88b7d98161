// Package cmdtrace records a driver's requests to its device: commands, register writes and the steps of Open. Each
// open device keeps the last Size of them, and the log shows them when Open fails or the device dies. `responder probe`
// records all of them (Observe). No Poll calls anything here.
package cmdtrace

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Size is the number of entries that a Ring keeps.
const Size = 64

// rawBytes is the number of bytes of a refused command that a Ring keeps.
const rawBytes = 64

// The kinds of entries.
const (
	Step     = "step"     // of Open or of a restart, when it ended
	Command  = "command"  // of firmware, or an admin request
	Read     = "read"     // of a register
	Write    = "write"    // of a register
	Config   = "config"   // a write of configuration space, a reset, bus mastering
	Fallback = "fallback" // a refusal of the card, and what the driver does instead
)

// Address is the name of the entry whose In is the device's MAC address.
const Address = "MAC address of the device"

// Entry is one request to the device. Fields that a kind does not use are zero.
type Entry struct {
	At   time.Duration `json:"at_ns"` // since the start of the trace
	Kind string        `json:"kind"`
	Name string        `json:"name"` // "QUERY_HCA_CAP", "BAR0+0x58"

	Opcode   uint32 `json:"opcode,omitempty"`
	OpMod    uint32 `json:"op_mod,omitempty"`
	Modifier uint32 `json:"modifier,omitempty"` // mlx4: input modifier; ENA, EFA: feature
	Status   uint32 `json:"status,omitempty"`
	Syndrome uint32 `json:"syndrome,omitempty"` // ENA, EFA: extended status

	Value uint64 `json:"value,omitempty"` // of a register
	Width int    `json:"width,omitempty"` // of a register, in bytes
	Times int    `json:"times,omitempty"` // number of reads in a row with the same answer; 0 for one

	In  Bytes `json:"in,omitempty"`  // the request; a Ring keeps the first 64 bytes of refused ones only
	Out Bytes `json:"out,omitempty"` // the answer; a Ring keeps none

	Took time.Duration `json:"took_ns,omitempty"`
	Err  string        `json:"error,omitempty"`
}

// Bytes are hexadecimal in JSON.
type Bytes []byte

// MarshalText implements encoding.TextMarshaler.
func (b Bytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, b), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Bytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.AppendDecode(nil, text)
	return err
}

// String returns the entry in the format of the log and of a probe file's trace.txt.
func (e Entry) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.6f s %s %s", e.At.Seconds(), e.Kind, e.Name)
	switch e.Kind {
	case Command:
		fmt.Fprintf(&b, ": opcode %#x, op_mod %#x, modifier %#x, status %#x, syndrome %#x", e.Opcode, e.OpMod,
			e.Modifier, e.Status, e.Syndrome)
	case Read, Write:
		fmt.Fprintf(&b, ": %#0*x", 2+2*e.Width, e.Value)
		if e.Times > 1 {
			fmt.Fprintf(&b, ", %d times", e.Times)
		}
	}
	if e.Took > 0 {
		fmt.Fprintf(&b, ", took %v", e.Took.Round(time.Microsecond))
	}
	if e.Err != "" {
		fmt.Fprintf(&b, ", error: %s", e.Err)
	}
	if len(e.In) > 0 {
		fmt.Fprintf(&b, ", in %x", []byte(e.In))
	}
	if len(e.Out) > 0 {
		fmt.Fprintf(&b, ", out %x", []byte(e.Out))
	}
	return b.String()
}

// Ring keeps the last entries. The zero Ring is empty; a nil one records nothing.
type Ring struct {
	mu    sync.Mutex
	began time.Time
	last  [Size]Entry
	n     int // entries since the beginning
	seen  func(Entry)
}

// Follow has seen called with every later entry, whole. It is called before the first Add.
func (r *Ring) Follow(seen func(Entry)) { r.seen = seen }

// Add records an entry that ended now. The ring copies the part of In that it keeps.
func (r *Ring) Add(e Entry) {
	if r == nil {
		return
	}
	e = r.keep(e)
	if r.seen != nil {
		r.seen(e)
	}
}

// Register records an access to a register, for devices that have no commands. An observer sees it through the window.
func (r *Ring) Register(write bool, name string, off uint32, v uint64, width int) {
	e := Entry{Kind: Read, Name: fmt.Sprintf("%s+%#x", name, off), Value: v, Width: width}
	if write {
		e.Kind = Write
	}
	r.keep(e)
}

// keep adds an entry to the ring and returns it with its time. The ring keeps the input of failed commands only, at
// most rawBytes of it.
func (r *Ring) keep(e Entry) Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began.IsZero() {
		r.began = time.Now()
	}
	e.At = time.Since(r.began)
	kept := e
	kept.In, kept.Out = nil, nil
	if e.Kind == Command && (e.Status != 0 || e.Err != "") {
		kept.In = append(Bytes(nil), e.In[:min(len(e.In), rawBytes)]...)
	}
	r.last[r.n%Size] = kept
	r.n++
	return e
}

// Entries are the last ones, oldest first.
func (r *Ring) Entries() []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Entry, 0, Size)
	for i := max(0, r.n-Size); i < r.n; i++ {
		out = append(out, r.last[i%Size])
	}
	return out
}

// Refused reports whether the device answered a command with a failure.
func (e Entry) Refused() bool { return e.Kind == Command && e.Status != 0 }
