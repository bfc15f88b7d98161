package efa

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// besideKernel answers the calls of a process beside the kernel's driver, and writes down what they ask for.
type besideKernel struct {
	t   *testing.T
	sys string
	log []string

	fails    string // the call that fails,
	with     error  // in this way
	context  abi.EFAAllocUcontextResp
	device   abi.QueryDeviceResp
	own      abi.EFAExQueryDeviceResp
	port     abi.QueryPortResp
	cq       abi.EFACreateCQResp
	cqLess   uint32 // entries that a completion queue lacks
	qp       abi.EFACreateQPResp
	memory   map[uint64][]byte
	events   [2]int
	number   uint32
	contexts int // open ones
}

func newBesideKernel(t *testing.T) *besideKernel {
	k := &besideKernel{t: t, sys: t.TempDir(), memory: map[uint64][]byte{},
		context: abi.EFAAllocUcontextResp{CmdsSuppUdataMask: 2, SubCQsPerCQ: 2, InlineBufSize: 32, MaxLLQSize: 1 << 14,
			MaxTxBatch: 16, MinSQWR: 32},
		device: abi.QueryDeviceResp{MaxQP: 4, MaxCQ: 4, MaxCQE: 1 << 12, MaxAH: 64},
		own:    abi.EFAExQueryDeviceResp{MaxSQWR: 128, MaxRQWR: 128, DeviceCaps: 1<<1 | 1<<3},
		port:   abi.QueryPortResp{MaxMsgSz: 8928},
		cq:     abi.EFACreateCQResp{CompMask: 1, QMmapKey: 0x1000, QMmapSize: 1 << 16, DBOff: 4092, DBMmapKey: 0x2000},
		qp: abi.EFACreateQPResp{RQDBOffset: 8, SQDBOffset: 16, LLQDescOffset: 64, RQMmapKey: 0x3000, RQMmapSize: 1024,
			RQDBMmapKey: 0x4000, SQDBMmapKey: 0x5000, LLQDescMmapKey: 0x6000, SendSubCQIdx: 1, RecvSubCQIdx: 1}}
	config := make([]byte, 256)
	binary.LittleEndian.PutUint32(config, 0xEFA2<<16|0x1D0F)
	k.file("bus/pci/devices/0000:00:06.0/config", string(config))
	k.file("class/infiniband/efa_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001\n")
	k.file("class/infiniband/efa_0/ports/1/rate", "100 Gb/sec (4X EDR)\n")
	k.file("class/infiniband/efa_0/ports/1/hw_counters/rx_pkts", "12\n")
	return k
}

func (k *besideKernel) file(name, content string) {
	path := filepath.Join(k.sys, name)
	must.OK(k.t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.OK(k.t, os.WriteFile(path, []byte(content), 0o644))
}

func (k *besideKernel) function() *verbs.Function {
	return must.Get(verbs.New("efa_0", verbs.Found{Name: "efa_0", Function: pci.Found{Address: "0000:00:06.0",
		ID: pci.ID{Vendor: 0x1D0F, Device: 0xEFA2}, Driver: "efa", NUMANode: -1}}, k.sys,
		func(verbs.Found) (verbs.Kernel, error) { k.contexts++; return k, nil }))(k.t)
}

// say writes down a call, and returns the error that it has.
func (k *besideKernel) say(format string, args ...any) error {
	line := fmt.Sprintf(format, args...)
	if k.log = append(k.log, line); k.fails != "" && strings.HasPrefix(line, k.fails) {
		return k.with
	}
	return nil
}

func put[T any](b []byte, v T) { copy(b, verbs.Bytes(&v)) }

func read[T any](b []byte) (v T) { copy(verbs.Bytes(&v), b); return v }

func (k *besideKernel) Call(object, method uint16, attrs []verbs.Attr) error {
	own, answer := rig.Data(attrs, abi.AttrUHWIn), rig.Data(attrs, abi.AttrUHWOut)
	switch {
	case object == abi.ObjectAsyncEvent:
		must.OK(k.t, unix.Pipe2(k.events[:], unix.O_CLOEXEC))
		attrs[0].Value = int64(k.events[0])
		return nil
	case object == abi.ObjectCQ:
		entries := binary.NativeEndian.Uint32(rig.Data(attrs, abi.AttrCreateCQCQE))
		k.number++
		rig.CreatedCQ(attrs, k.number, entries+1-k.cqLess)
		put(answer, k.cq)
		q := read[abi.EFACreateCQ](own)
		return k.say("CQ %d: %d entries of %d bytes, %d rings, flags %d", k.number, entries, q.CQEntrySize, q.NumSubCQs,
			q.Flags)
	case method == abi.MethodGetContext:
		put(answer, k.context)
		return k.say("context with %d", read[abi.EFAAllocUcontextCmd](own).SupportedCaps)
	}
	in, out := rig.Data(attrs, abi.AttrCoreIn), rig.Data(attrs, abi.AttrCoreOut)
	switch number := attrs[0].Value; number {
	case abi.CmdQueryDevice | abi.CmdFlagExtended:
		put(out, abi.ExQueryDeviceResp{Base: k.device})
		put(answer, k.own)
		return k.say("query device")
	case abi.CmdQueryPort:
		put(out, k.port)
		return k.say("query port %d", read[abi.QueryPort](in).PortNum)
	case abi.CmdAllocPD:
		return k.say("PD")
	case abi.CmdRegMR:
		put(out, abi.RegMRResp{MRHandle: 1, LKey: 77})
		return k.say("register %d bytes", read[abi.RegMR](in).Length)
	case abi.CmdDeregMR:
		return k.say("deregister")
	case abi.CmdCreateQP:
		q, o := read[abi.CreateQP](in), read[abi.EFACreateQP](own)
		k.number++
		put(out, abi.CreateQPResp{QPHandle: k.number, QPN: 100 + k.number})
		put(answer, k.qp)
		return k.say("QP %d: CQs %d, %d; %d sends, %d receives, %d bytes inline, type %d, %d; rings of %d, %d bytes",
			k.number, q.SendCQHandle, q.RecvCQHandle, q.MaxSendWR, q.MaxRecvWR, q.MaxInlineData, q.QPType,
			o.DriverQPType, o.SQRingSize, o.RQRingSize)
	case abi.CmdModifyQP:
		q := read[abi.ModifyQP](in)
		return k.say("modify %d to %d: %#x, port %d, Q_Key %#x, RNR retry %d", q.QPHandle, q.QPState, q.AttrMask, q.PortNum,
			q.QKey, q.RNRRetry)
	case abi.CmdCreateAH:
		k.number++
		put(out, abi.CreateAHResp{AHHandle: k.number})
		put(answer, abi.EFACreateAHResp{EFAAddressHandle: uint16(k.number + 500)})
		return k.say("AH of %v", netip.AddrFrom16(read[abi.CreateAH](in).Attr.GRH.DGID))
	case abi.CmdDestroyAH:
		return k.say("destroy AH %d", read[abi.DestroyAH](in).AHHandle)
	default:
		k.t.Errorf("call %#x", number)
		return unix.ENOSYS
	}
}

func (k *besideKernel) Map(key uint64, size int, write bool) ([]byte, error) {
	if err := k.say("map %#x: %d bytes, write %t", key, size, write); err != nil {
		return nil, err
	}
	if k.memory[key] == nil {
		b := must.Get(unix.Mmap(-1, 0, 1<<17, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(k.t)
		k.t.Cleanup(func() { unix.Munmap(b) })
		k.memory[key] = b
	}
	return k.memory[key], nil
}

func (k *besideKernel) Unmap([]byte) error { return nil }

func (k *besideKernel) Close() error {
	k.contexts--
	if k.events[1] != 0 {
		check.OK(k.t, unix.Close(k.events[1]))
	}
	k.events[1] = 0
	return nil
}

func (k *besideKernel) open(services ...nic.Service) (*Device, error) {
	o := nic.Options{RingSize: 64, Log: slog.New(slog.DiscardHandler)}
	return Open(k.function(), o, Options{Services: services})
}

// What the driver asks the kernel for, and where it finds the rings and doorbells.
func TestBeside(t *testing.T) {
	k := newBesideKernel(t)
	d := must.Get(k.open(nic.EchoUD, nic.EchoSRD))(t)
	var log []string
	for _, line := range k.log {
		if !strings.HasPrefix(line, "register") {
			log = append(log, line)
		}
	}
	rings := []string{"map 0x3000: 4096 bytes, write true", "map 0x6000: 8192 bytes, write true",
		"map 0x5000: 4096 bytes, write true", "map 0x4000: 4096 bytes, write true"}
	cq := []string{"map 0x1000: 65536 bytes, write false", "map 0x2000: 4096 bytes, write true"}
	check.Same(t, log, slices.Concat([]string{"context with 3", "query device", "query port 1", "PD",
		"CQ 1: 128 entries of 32 bytes, 2 rings, flags 2"}, cq,
		[]string{"CQ 2: 256 entries of 16 bytes, 2 rings, flags 0"}, cq,
		[]string{"QP 3: CQs 2, 1; 64 sends, 64 receives, 32 bytes inline, type 4, 0; rings of 4096, 1024 bytes"}, rings,
		[]string{"modify 3 to 1: 0x71, port 1, Q_Key 0x11111111, RNR retry 0",
			"modify 3 to 2: 0x1, port 0, Q_Key 0x0, RNR retry 0", "modify 3 to 3: 0x10001, port 0, Q_Key 0x0, RNR retry 0",
			"QP 4: CQs 2, 1; 64 sends, 64 receives, 32 bytes inline, type 255, 0; rings of 4096, 1024 bytes"}, rings,
		[]string{"modify 4 to 1: 0x71, port 1, Q_Key 0x11111111, RNR retry 0",
			"modify 4 to 2: 0x1, port 0, Q_Key 0x0, RNR retry 0", "modify 4 to 3: 0x10801, port 0, Q_Key 0x0, RNR retry 0"}),
		"%q")
	p := &d.queues[0].pairs[1]
	at := func(key uint64, off int) unsafe.Pointer { return unsafe.Pointer(&k.memory[key][off]) }
	if p.llq != at(0x6000, 64) || p.rq != at(0x3000, 0) || unsafe.Pointer(p.sqDB) != at(0x5000, 16) ||
		unsafe.Pointer(p.rqDB) != at(0x4000, 8) || unsafe.Pointer(d.queues[0].rxCQDB) != at(0x2000, 4092) ||
		d.queues[0].key != 77 {
		t.Errorf("pair %+v, doorbell %p, key %d", p, d.queues[0].rxCQDB, d.queues[0].key)
	}
	check.Equal(t, d.Endpoints()[1].QPN, 104, "queue pair %d")
	var s nic.Stats
	must.OK(t, d.ReadStats(&s))
	u := d.control.(*uverbs)
	peer := netip.MustParseAddr("fe80::9")
	number := must.Get(u.createAH(peer))(t)
	check.Equal(t, number, 505, "address handle %d")
	check.OK(t, u.destroyAH(number))
	check.Fails(t, "an address handle again", u.destroyAH(number), nil, "address handle 505 is not there")
	check.Same(t, k.log[len(k.log)-2:], []string{"AH of fe80::9", "destroy AH 5"}, "%q")
	must.Close(t, d)
	check.Equal(t, k.contexts, 0, "%d contexts are open after Close")
}

// What the kernel or the device lacks, or answers wrongly, is refused with the reason, and the context is closed.
func TestBesideRefuses(t *testing.T) {
	fails := func(call string, err error) func(*besideKernel) {
		return func(k *besideKernel) { k.fails, k.with = call, err }
	}
	for name, c := range map[string]struct {
		change func(*besideKernel)
		is     error
		says   string
	}{
		"no context":            {fails("context", unix.EPERM), unix.EPERM, "open a context"},
		"no numbers of handles": {func(k *besideKernel) { k.context.CmdsSuppUdataMask = ^uint32(2) }, errors.ErrUnsupported, "numbers of address handles"},
		"device not described":  {fails("query device", unix.EIO), unix.EIO, "query the device"},
		"no GIDs of senders":    {func(k *besideKernel) { k.own.DeviceCaps = ^uint32(1 << 3) }, errors.ErrUnsupported, "rebound-responder bind 0000:00:06.0"},
		"port not described":    {fails("query port", unix.EIO), unix.EIO, "query the port"},
		"short messages":        {func(k *besideKernel) { k.port.MaxMsgSz = 63 }, nil, "messages of up to 63 bytes"},
		"no GID":                {func(k *besideKernel) { k.file("class/infiniband/efa_0/ports/1/gids/0", "::\n") }, nic.ErrNoDevice, "has no GID"},
		"no such GID":           {func(k *besideKernel) { k.file("class/infiniband/efa_0/ports/1/gids/0", "x\n") }, nic.ErrNoDevice, "has no GID"},
		"few queue pairs":       {func(k *besideKernel) { k.device.MaxQP = 1 }, nil, "the device has 1 and 4"},
		"few completion queues": {func(k *besideKernel) { k.device.MaxCQ = 1 }, nil, "the device has 4 and 1"},
		"small completion queues": {func(k *besideKernel) { k.device.MaxCQE = 127 }, nil,
			"needs a completion queue of 128 entries, the device has up to 127"},
		"no PD":                {fails("PD", unix.ENOMEM), unix.ENOMEM, "protection domain"},
		"no memory":            {fails("register", unix.ENOMEM), unix.ENOMEM, "register"},
		"no completion queue":  {fails("CQ", unix.ENOMEM), unix.ENOMEM, "create receive CQ"},
		"no second":            {fails("CQ 2", unix.ENOMEM), unix.ENOMEM, "create send CQ"},
		"a smaller one":        {func(k *besideKernel) { k.cqLess = 1 }, nic.ErrHardware, "127 entries in 65536 bytes, expected 128 in 8192 or more"},
		"less memory of it":    {func(k *besideKernel) { k.cq.QMmapSize = 128*2*32 - 1 }, nic.ErrHardware, "128 entries in 8191 bytes, expected 128 in 8192 or more"},
		"it is not mapped":     {fails("map 0x1000", unix.EAGAIN), unix.EAGAIN, "create receive CQ"},
		"odd doorbell":         {func(k *besideKernel) { k.cq.DBOff = 2 }, nic.ErrHardware, "doorbell at 0x2 of a page"},
		"doorbell outside":     {func(k *besideKernel) { k.cq.DBOff = 4096 }, nic.ErrHardware, "doorbell at 0x1000 of a page"},
		"doorbell not mapped":  {fails("map 0x2000", unix.EAGAIN), unix.EAGAIN, "doorbell"},
		"no queue pair":        {fails("QP", unix.EINVAL), unix.EINVAL, "create queue pair"},
		"other send ring":      {func(k *besideKernel) { k.qp.SendSubCQIdx = 2 }, nic.ErrHardware, "by rings 2 and 1 of 2"},
		"other receive ring":   {func(k *besideKernel) { k.qp.RecvSubCQIdx = 2 }, nic.ErrHardware, "by rings 1 and 2 of 2"},
		"odd send queue":       {func(k *besideKernel) { k.qp.LLQDescOffset = 32 }, nic.ErrHardware, "send queue at 0x20 of a page"},
		"send queue outside":   {func(k *besideKernel) { k.qp.LLQDescOffset = 4096 }, nic.ErrHardware, "send queue at 0x1000 of a page"},
		"short receive queue":  {func(k *besideKernel) { k.qp.RQMmapSize = 1023 }, nic.ErrHardware, "receive queue of 1023 bytes"},
		"receives not mapped":  {fails("map 0x3000", unix.EAGAIN), unix.EAGAIN, "receive queue"},
		"sends not mapped":     {fails("map 0x6000", unix.EAGAIN), unix.EAGAIN, "send queue"},
		"no send doorbell":     {fails("map 0x5000", unix.EAGAIN), unix.EAGAIN, "doorbell"},
		"no receive doorbell":  {fails("map 0x4000", unix.EAGAIN), unix.EAGAIN, "doorbell"},
		"a Q_Key of the admin": {fails("modify 3 to 1", unix.EPERM), nic.ErrRights, "a Q_Key with the highest bit set takes CAP_NET_RAW"},
		"not ready":            {fails("modify 3 to 3", unix.EINVAL), unix.EINVAL, "modify queue pair to state 3"},
		"no counters":          {func(k *besideKernel) { os.RemoveAll(k.sys + "/class/infiniband/efa_0/ports/1/hw_counters") }, os.ErrNotExist, "hw_counters"},
	} {
		k := newBesideKernel(t)
		c.change(k)
		d, err := k.open(nic.EchoUD, nic.EchoSRD)
		check.Fails(t, name, err, c.is, c.says)
		check.Equal(t, k.contexts, 0, name+": %d contexts are open")
		if d != nil {
			d.Close()
		}
	}
	k := newBesideKernel(t) // entries of 128 bytes are refused, those of 64 are not
	k.context.InlineBufSizeEx, k.fails, k.with = 80, "QP 3: CQs 2, 1; 64 sends, 64 receives, 80", unix.EINVAL
	d := must.Get(k.open(nic.EchoUD))(t)
	check.Equal(t, d.entry, 64, "entries of %d bytes")
	must.Close(t, d)
}

// Events of the kernel: those that end the context, and others, which are counted.
func TestBesideEvents(t *testing.T) {
	k := newBesideKernel(t)
	d := &Device{}
	d.card.Log = slog.New(slog.DiscardHandler)
	u := &uverbs{d: d, fn: k.function()}
	must.OK(t, u.begin())
	tell := func(kinds ...uint32) {
		for _, kind := range kinds {
			must.Get(unix.Write(k.events[1], verbs.Bytes(&abi.AsyncEventDesc{EventType: kind})))(t)
		}
	}
	for _, c := range []struct {
		kinds []uint32
		want  string
	}{{nil, ""}, {[]uint32{9, 7, 8, 0}, "device_fatal"}, {[]uint32{1, 2}, "queue_pair_error"}, {[]uint32{9}, ""}} {
		tell(c.kinds...)
		s, err := u.check(false)
		if s == nil {
			s = &kit.Symptom{}
		}
		check.Equal(t, s.Reason, c.want, fmt.Sprint(c.kinds, ": %s"))
		check.OK(t, err)
	}
	extra := map[string]uint64{}
	u.events(extra)
	check.Equal(t, extra["unknown_events"], 5, "%d unknown events")
	check.OK(t, errors.Join(u.answers(), u.revive(), u.release()))
	check.Equal(t, k.contexts, 0, "%d contexts are open")
}
