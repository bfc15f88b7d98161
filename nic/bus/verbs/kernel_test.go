package verbs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A message as the kernel reads it, byte by byte.
func TestMessage(t *testing.T) {
	long, answer := make([]byte, 24), make([]byte, 4)
	var pins runtime.Pinner
	defer pins.Unpin()
	words, _ := message(17, 3, 5, []Attr{
		{ID: 0, Kind: Create},
		{ID: 1, Kind: In, Data: []byte{1, 2, 3, 4}},
		{ID: 0x1000, Kind: In, Data: long},
		{ID: 0x1001, Kind: Out, Data: answer},
		{ID: 7, Kind: FD, Value: 11},
		{ID: 8, Kind: Handle, Value: 12},
		{ID: 2, Kind: Const, Value: 0x80000001},
		{ID: 9, Kind: Enum, Value: 3, Data: []byte{5, 0}},
	}, &pins)
	le := binary.NativeEndian
	want := le.AppendUint16(nil, 24+8*16)
	for _, v := range []uint16{3, 5, 8} {
		want = le.AppendUint16(want, v)
	}
	want = le.AppendUint64(want, 0)
	want = le.AppendUint64(want, 17)
	attr := func(id, n uint16, data uint64) {
		for _, v := range []uint16{id, n, 1, 0} {
			want = le.AppendUint16(want, v)
		}
		want = le.AppendUint64(want, data)
	}
	attr(0, 0, 0)
	attr(1, 4, uint64(le.Uint32([]byte{1, 2, 3, 4})))
	attr(0x1000, 24, uint64(uintptr(unsafe.Pointer(&long[0]))))
	attr(0x1001, 4, uint64(uintptr(unsafe.Pointer(&answer[0]))))
	attr(7, 0, 11)
	attr(8, 0, 12)
	attr(2, 8, 0x80000001)
	for _, v := range []uint16{9, 2, 1, 3} {
		want = le.AppendUint16(want, v)
	}
	want = append(want, 5, 0, 0, 0, 0, 0, 0, 0)
	if got := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words)); !bytes.Equal(got, want) {
		t.Errorf("message\n%x, want\n%x", got, want)
	}
}

// tree is a machine with an EFA registered with ib_uverbs, a ConnectX that is not, and a software RDMA device.
func tree(t *testing.T) *host {
	t.Helper()
	dir := t.TempDir()
	file := func(name, text string) {
		name = filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.OK(t, os.WriteFile(name, []byte(text), 0o644))
	}
	link := func(name, to string) {
		must.OK(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	file("sys/devices/pci/0000:00:04.0/config", strings.Repeat("\x00", 256))
	file("sys/devices/pci/0000:00:05.0/config", strings.Repeat("\x00", 256))
	file("sys/class/infiniband/rdmap0s4/ports/1/gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001\n")
	file("sys/class/infiniband/rdmap0s4/ports/1/hw_counters/rx_pkts", "12\n")
	file("sys/class/infiniband/rdmap0s4/ports/1/hw_counters/lifespan", "10\n")
	link("sys/class/infiniband/rdmap0s4/device", "../../../devices/pci/0000:00:04.0")
	file("sys/class/infiniband/mlx5_0/x", "")
	link("sys/class/infiniband/mlx5_0/device", "../../../devices/pci/0000:00:05.0")
	file("sys/class/infiniband/rxe0/x", "")
	file("sys/class/infiniband_verbs/uverbs3/ibdev", "rdmap0s4\n")
	file("sys/class/infiniband_verbs/uverbs3/abi_version", "1\n")
	file("sys/class/infiniband_verbs/abi_version", "6\n")
	link("sys/bus", "devices")
	file("dev/infiniband/uverbs3", "")
	must.OK(t, os.MkdirAll(filepath.Join(dir, "sys/devices/pci/devices"), 0o755))
	link("sys/devices/pci/devices/0000:00:04.0", "../0000:00:04.0")
	return &host{filepath.Join(dir, "sys"), filepath.Join(dir, "dev"), func(address string) (pci.Found, error) {
		f := pci.Found{Address: address, Driver: "efa", NUMANode: -1}
		if address == "0000:00:05.0" {
			f.Driver, f.Interfaces = "mlx5_core", []string{"eth1"}
		}
		return f, nil
	}}
}

func TestFind(t *testing.T) {
	h := tree(t)
	all, err := h.list()
	if err != nil || len(all) != 2 {
		t.Fatalf("%d devices, want 2: %+v, %v", len(all), all, err)
	}
	for name, want := range map[string]string{"rdmap0s4": "rdmap0s4", "0000:00:04.0": "rdmap0s4", "00:04.0": "rdmap0s4",
		"mlx5_0": "mlx5_0", "eth1": "mlx5_0",
		"0000:00:05.0": "mlx5_0", "eth0": "", "": "", "rxe0": ""} {
		f, err := h.find(name)
		if f.Name != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, want %q (%v)", name, f.Name, want, err)
		}
	}
	if f, _ := h.find("rdmap0s4"); f.Node != filepath.Join(h.dev, "infiniband/uverbs3") || f.ABI != 1 ||
		f.Missing() != "" {
		t.Errorf("%+v, missing %q", f, f.Missing())
	}
	if f, _ := h.find("mlx5_0"); !strings.Contains(f.Missing(), "modprobe ib_uverbs") {
		t.Errorf("a device without ib_uverbs lacks %q", f.Missing())
	}
}

// script is a kernel whose answers come from a function, and which records the calls.
type script struct {
	answer func(command uint32, core, answer []byte) error
	closed bool
}

func (s *script) Call(object, method uint16, attrs []Attr) error {
	var core, answer []byte
	var command uint32
	for i := range attrs {
		switch a := &attrs[i]; {
		case object == abi.ObjectAsyncEvent:
			var fds [2]int
			if err := unix.Pipe(fds[:]); err != nil {
				return err
			}
			unix.Close(fds[1])
			a.Value = int64(fds[0])
		case object != abi.ObjectDevice || method != abi.MethodInvokeWrite:
		case a.ID == abi.AttrWriteCmd:
			command = uint32(a.Value)
		case a.ID == abi.AttrCoreIn:
			core = a.Data
		case a.ID == abi.AttrCoreOut:
			answer = a.Data
		}
	}
	if command == 0 {
		return nil
	}
	return s.answer(command, core, answer)
}

func (s *script) Map(uint64, int, bool) ([]byte, error) { return nil, unix.EINVAL }
func (s *script) Unmap([]byte) error                    { return nil }
func (s *script) Close() error                          { s.closed = true; return nil }

func TestFunction(t *testing.T) {
	h := tree(t)
	found := must.Get(h.find("rdmap0s4"))(t)
	k := &script{}
	registered := map[uint32][]byte{}
	limit := false
	k.answer = func(command uint32, core, answer []byte) error {
		switch command {
		case abi.CmdAllocPD:
			*(*abi.AllocPDResp)(unsafe.Pointer(&answer[0])) = abi.AllocPDResp{PDHandle: 5}
		case abi.CmdRegMR:
			q := (*abi.RegMR)(unsafe.Pointer(&core[0]))
			if q.PDHandle != 5 || q.HCAVA != q.Start || q.AccessFlags != 1 {
				t.Errorf("registered %+v, want PDHandle 5, HCAVA equal to Start, AccessFlags 1", *q)
			}
			if limit {
				return unix.ENOMEM
			}
			n := uint32(len(registered) + 1)
			registered[n] = core
			*(*abi.RegMRResp)(unsafe.Pointer(&answer[0])) = abi.RegMRResp{MRHandle: n, LKey: 100 + n}
		case abi.CmdDeregMR:
			delete(registered, (*abi.DeregMR)(unsafe.Pointer(&core[0])).MRHandle)
		}
		return nil
	}
	f := must.Get(New("rdmap0s4", found, h.sys, func(Found) (Kernel, error) { return k, nil }))(t)
	memory := dma.Memory{Bytes: make([]byte, 1<<16)}
	check.Fails(t, "memory was registered without a context", check.Err(f.Map(memory)), nil)
	must.OK(t, f.Start())
	c := f.Context()
	must.OK(t, c.Begin(nil, nil))
	must.OK(t, c.AllocPD(nil))
	at, err := f.Map(memory)
	if err != nil || at != uint64(uintptr(unsafe.Pointer(&memory.Bytes[0]))) {
		t.Fatalf("memory is at %#x for the device, %v", at, err)
	}
	if base, size, key, err := f.Region(at + 1<<16 - 1); err != nil || key != 101 || base != at || size != 1<<16 {
		t.Errorf("key %d of %d bytes at %#x, %v", key, size, base, err)
	}
	if _, _, _, err := f.Region(at + 1<<16); err == nil {
		t.Error("memory that is not registered has a key")
	}
	if err := f.Unmap(at, len(memory.Bytes)); err != nil || len(registered) != 0 {
		t.Errorf("unmap: %v, %d left", err, len(registered))
	}
	limit = true
	check.Fails(t, "too much locked memory", check.Err(f.Map(memory)), nil, "locked memory is ")
	if n, err := f.Counters("ports/1/hw_counters"); err != nil || len(n) != 1 || n["rx_pkts"] != 12 {
		t.Errorf("counters %v, %v", n, err)
	}
	check.Equal(t, f.Text("ports/1/gids/0"), "fe80:0000:0000:0000:0000:00ff:fe00:0001", "GID %q")
	check.Fails(t, "registers were given away", check.Err(f.BAR(0)), nil)
	if Of(f) != f || Of(struct{ pci.Function }{}) != nil {
		t.Error("Of does not tell how a function is driven")
	}
	if err := f.Close(); err != nil || !k.closed {
		t.Errorf("close: %v, the kernel closed it: %v", err, k.closed)
	}
}

// A device of the machine is opened by its name or its interface, and again from what is there by then.
func TestOpen(t *testing.T) {
	h := tree(t)
	defer func(h host) { machine = h }(machine)
	machine = *h
	f := must.Get(Open("00:04.0"))(t)
	check.Fails(t, "Map without a context", check.Err(f.Map(dma.Memory{Bytes: make([]byte, 8)})), bus.ErrGone, "00:04.0")
	check.OK(t, f.Stop())
	must.OK(t, f.Start())
	d := f.Context().Kernel.(*device)
	check.Equal(t, d.driver, abi.DriverEFA, "driver %d")
	check.Fails(t, "a file that is not a device", d.Call(abi.ObjectDevice, 0, nil), unix.ENOTTY)
	page := func(write bool) ([]byte, error) { return d.Map(0, 4096, write) }
	must.OK(t, os.Truncate(f.Node, 4096))
	must.Get(page(true))(t)[9] = 7
	b := must.Get(page(false))(t)
	check.Equal(t, b[9], 7, "byte %d")
	check.OK(t, d.Unmap(b))
	check.Equal(t, f.Name()+f.ID().String(), "00:04.0"+f.Function.ID.String(), "%s")
	check.Equal(t, f.NUMANode(), -1, "NUMA node %d")
	check.Equal(t, f.Simulated(), false, "a model: %v")
	check.Equal(t, fmt.Sprint(f.Notes()), "[beside the kernel's driver efa, as rdmap0s4 "+
		"started without CAP_SYS_ADMIN, which recognizing a device model needs: the backend is reported as silicon]", "%s")
	check.OK(t, f.SetBusMaster(true))
	for what, err := range map[string]error{"configuration space": f.WriteConfig(4, nil), "reset": f.Reset(),
		"registers": check.Err(f.BARWC(0))} {
		check.Fails(t, what, err, errKernels, "00:04.0: "+what)
	}
	check.OK(t, f.Unmap(8, 8)) // of a context that was closed
	check.OK(t, f.Stop())
	check.Fails(t, "the device's file is closed", check.Err(d.file.Stat()), os.ErrClosed)

	must.OK(t, os.Remove(f.Node))
	check.Fails(t, "no file in /dev", f.Start(), bus.ErrNoDevice, "in a container, give it the device")
	must.OK(t, os.RemoveAll(filepath.Join(h.sys, "class/infiniband_verbs/uverbs3")))
	check.Fails(t, "no ib_uverbs", f.Start(), bus.ErrNoDevice, "rdmap0s4", "modprobe ib_uverbs")
	must.OK(t, os.RemoveAll(filepath.Join(h.sys, "class/infiniband/rdmap0s4")))
	check.Fails(t, "the device is gone", f.Start(), bus.ErrNoDevice, "the kernel has no RDMA device of that name")
	check.Fails(t, "a device that was never there", check.Err(Open("eth0")), bus.ErrNoDevice)
	check.Fails(t, "no configuration space", check.Err(Open("eth1")), os.ErrNotExist, "eth1")
	machine.function = func(string) (pci.Found, error) { return pci.Found{Driver: "ice"}, nil }
	check.Fails(t, "another driver", check.Err(Open("mlx5_0")), bus.ErrNoDevice, `not supported beside kernel driver "ice"`)
	machine.function = func(string) (pci.Found, error) { return pci.Found{}, bus.ErrNoDevice }
	check.Fails(t, "no device on the bus", check.Err(Open("mlx5_0")), bus.ErrNoDevice)
}
