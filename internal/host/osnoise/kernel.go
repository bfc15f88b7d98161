package osnoise

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// Tracepoints by program. The essential ones exist in every kernel; the others depend on architecture and
// configuration.
var tracepoints = []struct {
	program, name string
	essential     bool
}{
	{"sched_switch", "sched_switch", true}, {"sched_wakeup", "sched_wakeup", true},
	{"irq_entry", "irq_handler_entry", true}, {"irq_exit", "irq_handler_exit", true},
	{"softirq_entry", "softirq_entry", true}, {"softirq_exit", "softirq_exit", true},
	{"timer_entry", "local_timer_entry", false}, {"timer_exit", "local_timer_exit", false},
	{"reschedule_entry", "reschedule_entry", false}, {"reschedule_exit", "reschedule_exit", false},
	{"call_entry", "call_function_entry", false}, {"call_exit", "call_function_exit", false},
	{"call_single_entry", "call_function_single_entry", false}, {"call_single_exit", "call_function_single_exit", false},
	{"work_entry", "irq_work_entry", false}, {"work_exit", "irq_work_exit", false},
	{"ipi_entry", "ipi_entry", false}, {"ipi_exit", "ipi_exit", false},
	{"nmi", "nmi_handler", false},
}

// ringHeader is the length of what the kernel writes before each record of a ring (BPF_RINGBUF_HDR_SZ).
const ringHeader = 8

// kernel is the programs, attached.
type kernel struct {
	all    *ebpf.Collection
	links  []link.Link
	reader *ringbuf.Reader
	cores  *ebpf.Memory
	record ringbuf.Record
	states bool // the programs know why a thread does not run
}

// where the kernel has the state of a thread.
type stateAt struct {
	argument bool // in sched_switch's arguments
	offset   uint32
	long     bool
}

// findState looks up the state in the kernel's types.
func findState() (s stateAt) {
	spec, err := btf.LoadKernelSpec()
	if err != nil {
		return s
	}
	var task *btf.Struct
	if spec.TypeByName("task_struct", &task) != nil {
		return s
	}
	for _, m := range task.Members {
		if m.Name == "__state" || m.Name == "state" {
			size, err := btf.Sizeof(m.Type)
			if err == nil && m.Offset%8 == 0 && (size == 4 || size == 8) {
				return stateAt{offset: m.Offset.Bytes(), long: size == 8}
			}
		}
	}
	return s
}

// attach loads and attaches the programs.
func attach(threshold time.Duration) (*kernel, error) {
	xdpkit.LiftMemlock()
	k, err := attachWith(threshold, stateAt{argument: true})
	if errors.Is(err, unix.EINVAL) { // sched_switch has three arguments
		k, err = attachWith(threshold, findState())
	}
	return k, err
}

// attachWith loads the program and attaches it to the scheduler's and the interrupts' tracepoints. Gaps from
// threshold on are reported. state says where the tracepoint has a thread's state; zero if it is unknown.
func attachWith(threshold time.Duration, state stateAt) (_ *kernel, err error) {
	spec, err := loadProgram()
	if err != nil {
		return nil, err
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil {
		return nil, fmt.Errorf("/proc/self/ns/pid: %w", err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	spec.Maps["cores"].MaxEntries = uint32(cpus)
	for name, v := range map[string]any{
		"threshold": uint64(threshold), "piece": uint64(threshold / pieces), "ns_ino": ns.Ino,
		"ns_dev":         uint64(unix.Major(ns.Dev))<<20 | uint64(unix.Minor(ns.Dev)), // as the kernel has it
		"state_argument": state.argument, "state_offset": state.offset, "state_long": state.long,
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return nil, fmt.Errorf("constant %s: %w", name, err)
		}
	}
	k := &kernel{states: state != stateAt{}}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	if k.all, err = ebpf.NewCollection(spec); err != nil {
		return nil, err
	}
	for _, t := range tracepoints {
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: t.name, Program: k.all.Programs[t.program]})
		k.all.Programs[t.program].Close() // the link keeps it
		switch {
		case err == nil:
			k.links = append(k.links, l)
		case t.essential:
			return nil, fmt.Errorf("tracepoint %s: %w", t.name, err)
		}
	}
	if k.cores, err = k.all.Maps["cores"].Memory(); err != nil {
		return nil, err
	}
	if k.reader, err = ringbuf.NewReader(k.all.Maps["events"]); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *kernel) close() {
	for _, l := range k.links {
		l.Close()
	}
	if k.reader != nil {
		k.reader.Close()
	}
	if k.all != nil {
		k.all.Close()
	}
}

// assign makes tid the polling thread of a core. It makes no system call.
func (k *kernel) assign(cpu, tid int) error {
	var c [unsafe.Sizeof(programCore{})]byte
	at := int64(cpu) * int64(len(c))
	if _, err := k.cores.WriteAt(c[:], at); err != nil { // no thread, while the rest is cleared
		return fmt.Errorf("CPU %d: %w", cpu, err)
	}
	binary.NativeEndian.PutUint32(c[:], uint32(tid))
	_, err := k.cores.WriteAt(c[:4], at)
	return err
}

// lost is the number of events of a core for which the ring had no space.
func (k *kernel) lost(cpu int) uint64 {
	var b [8]byte
	size, field := unsafe.Sizeof(programCore{}), unsafe.Offsetof(programCore{}.Lost)
	k.cores.ReadAt(b[:], int64(cpu)*int64(size)+int64(field))
	return binary.NativeEndian.Uint64(b[:])
}

// each calls f with the events that are in the ring, in the order in which they ended on each core. It leaves those
// that come meanwhile, so that it ends on a machine that makes them faster than it reads.
func (k *kernel) each(f func(*programEvent)) {
	k.reader.SetDeadline(time.Unix(1, 0)) // do not wait
	var e programEvent
	for left := k.reader.AvailableBytes(); left > 0 && k.reader.ReadInto(&k.record) == nil; left -= ringHeader + len(
		k.record.RawSample) {
		if e.decode(k.record.RawSample) {
			f(&e)
		}
	}
}

func (e *programEvent) decode(b []byte) bool {
	if len(b) < int(unsafe.Sizeof(*e)) {
		return false
	}
	order := binary.NativeEndian
	for i, p := range []*uint64{&e.Start, &e.End, &e.Runnable, &e.Nested} {
		*p = order.Uint64(b[8*i:])
	}
	for i, p := range []*uint32{&e.Kind, &e.Cpu, &e.Detail, &e.Pid} {
		*p = order.Uint32(b[32+4*i:])
	}
	copy(e.Comm[:], b[48:])
	return true
}

// explain says in words why the programs cannot be used.
func explain(err error) string {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return "no CAP_BPF and CAP_PERFMON"
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, os.ErrNotExist):
		return "the kernel lacks tracepoints for BPF (Linux 5.8, CONFIG_BPF_EVENTS): " + oneLine(err)
	}
	return oneLine(err)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
