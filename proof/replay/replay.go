// Package replay creates a device model from a probe file (package internal/evidence), so that a report from a user's
// card becomes a test: the model has the card's identity, capabilities, limits and version, and refuses what the card
// refused.
package replay

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/parts"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

var le, be = binary.LittleEndian, binary.BigEndian

// MAC is the address of models created from a file without one.
var MAC = [6]byte{0x02, 0, 0, 0, 0, 0x01}

// Model is the device that a probe file describes. Everything that the file does not contain is as in our model of that
// device.
func Model(f *evidence.File) (sim.Model, error) {
	switch f.Driver {
	case "mlx5":
		return mlx5(f)
	case "mlx4":
		return mlx4(f)
	case "ena":
		return ena(f)
	case "efa":
		return efa(f)
	case "virtio":
		return virtio(f)
	case "ixgbe":
		return ixgbe(f)
	}
	return nil, fmt.Errorf("no model of driver %s", f.Driver)
}

// key is a kind of command.
type key struct{ opcode, opMod, modifier uint32 }

// answers are the replies in a file: for each kind of command one after the other, the last one repeatedly. A command
// without a reply is left out.
func answers(f *evidence.File) parts.Answers {
	all := map[key][]*parts.Recorded{}
	for _, e := range f.Trace {
		if e.Kind != cmdtrace.Command || e.Err != "" && e.Status == 0 {
			continue
		}
		k := key{e.Opcode, e.OpMod, e.Modifier}
		if f.Driver == "mlx5" {
			k.modifier = 0
			if e.Opcode == accessReg && len(e.In) >= 12 {
				k.modifier = uint32(be.Uint16(e.In[10:]))
			}
		}
		all[k] = append(all[k], &parts.Recorded{Status: uint8(e.Status), Syndrome: e.Syndrome, Out: e.Out})
	}
	return func(opcode, opMod, modifier uint32) *parts.Recorded {
		k := key{opcode, opMod, modifier}
		if len(all[k]) == 0 {
			return nil
		}
		r := all[k][0]
		if len(all[k]) > 1 {
			all[k] = all[k][1:]
		}
		return r
	}
}

const accessReg = 0x805 // mlx5's ACCESS_REG

// last is the last successful reply to a command.
func last(f *evidence.File, opcode, modifier uint32) []byte {
	for _, e := range slices.Backward(f.Trace) {
		if e.Kind == cmdtrace.Command && e.Opcode == opcode && e.Modifier == modifier && e.Status == 0 && e.Err == "" {
			return e.Out
		}
	}
	return nil
}

// mac is the address in the file, which may have been masked.
func mac(f *evidence.File) [6]byte {
	for _, e := range f.Trace {
		if e.Name == cmdtrace.Address && len(e.In) == 6 {
			return [6]byte(e.In)
		}
	}
	return MAC
}

// registers calls seen with each access to a BAR, in order.
func registers(f *evidence.File, seen func(bar int, off uint64, e *cmdtrace.Entry)) {
	for i := range f.Trace {
		e := &f.Trace[i]
		var bar int
		var off uint64
		if e.Kind != cmdtrace.Read && e.Kind != cmdtrace.Write {
			continue
		}
		if n, _ := fmt.Sscanf(e.Name, "BAR%d+0x%x", &bar, &off); n == 2 {
			seen(bar, off, e)
		}
	}
}

func mlx5(f *evidence.File) (sim.Model, error) {
	o := mlx5sim.Options{MAC: mac(f), Recorded: answers(f)}
	i := slices.IndexFunc(mlx5sim.Profiles(), func(p mlx5sim.Profile) bool { return p.Device() == f.ID.Device })
	if i < 0 {
		return nil, fmt.Errorf("no model of %v", f.ID)
	}
	o.Profile = mlx5sim.Profiles()[i]
	registers(f, func(bar int, off uint64, e *cmdtrace.Entry) {
		v := uint32(e.Value)
		switch {
		case bar != 0 || e.Kind != cmdtrace.Read || v == ^uint32(0):
		case off == 0: // the segment is big-endian, and the trace has the values that the CPU loaded
			v = swap(v)
			o.Firmware[0], o.Firmware[1] = uint16(v), uint16(v>>16)
		case off == 4:
			v = swap(v)
			o.InterfaceRev, o.Firmware[2] = uint16(v>>16), uint16(v)
		}
	})
	return mlx5sim.New(o), nil
}

func swap(v uint32) uint32 { return be.Uint32(le.AppendUint32(nil, v)) }

func mlx4(f *evidence.File) (sim.Model, error) {
	o := mlx4sim.Options{MAC: mac(f), Recorded: answers(f)}
	for _, p := range []mlx4sim.Profile{mlx4sim.ConnectX3, mlx4sim.ConnectX3Pro} {
		if p.Device() == f.ID.Device {
			o.Profile = p
		}
	}
	const flowSteering = 0x76 // of QUERY_DEV_CAP
	if c := last(f, 0x003, 0); len(c) > flowSteering && c[flowSteering]&0x80 != 0 {
		o.Steering = mlx4sim.DeviceManaged
	} else {
		o.Steering = mlx4sim.MACTable
	}
	if c := last(f, 0x043, 1); len(c) > 0 && c[0]&3 == 1 { // QUERY_PORT: the configured link type of the port
		o.Link = mlx4sim.InfiniBand
	}
	return mlx4sim.New(o), nil
}

// completion is the header size of an Amazon admin completion; the response data follows.
const completion = 8

// GET_FEATURE of ENA and of EFA.
const getENA, getEFA = 8, 11

func ena(f *evidence.File) (sim.Model, error) {
	o := enasim.Options{MAC: mac(f), Device: f.ID.Device, Recorded: answers(f)}
	attributes := last(f, getENA, 1)
	if len(attributes) < completion+36 {
		return enasim.New(o), nil // the trace ends before this step
	}
	o.Unsupported = ^le.Uint32(attributes[completion+8:])
	o.MaxMTU = le.Uint32(attributes[completion+32:])
	o.NoMetrics = le.Uint32(attributes[completion+12:])&(1<<2) == 0
	if q := last(f, getENA, 2); len(q) >= completion+4 {
		o.Queues = int(min(le.Uint32(q[completion:]), 8))
	}
	if l := last(f, getENA, 4); len(l) >= completion+32 {
		o.LLQSizes = le.Uint16(l[completion+12:])
		o.NoMeta = le.Uint16(l[completion+28:])&1 != 0
		if le.Uint16(l[completion+28:])&2 != 0 {
			o.Burst = le.Uint16(l[completion+30:])
		}
	} else {
		o.NoLLQ = true
	}
	return enasim.New(o), nil
}

func efa(f *evidence.File) (sim.Model, error) {
	profiles := efasim.Profiles()
	o := efasim.Options{MAC: mac(f), Profile: profiles[len(profiles)-1], Recorded: answers(f)}
	for _, p := range profiles {
		if p.Device == f.ID.Device {
			o.Profile = p
		}
	}
	o.Profile.Device = f.ID.Device
	if a := last(f, getEFA, 1); len(a) >= completion+52 {
		o.Unsupported = ^le.Uint64(a[completion:])
		o.Profile.Doorbells = int(le.Uint16(a[completion+28:]))
		o.Profile.Caps = le.Uint32(a[completion+32:])
	}
	if q := last(f, getEFA, 9); len(q) >= completion+2 {
		o.Profile.Inline = le.Uint16(q[completion:])
	}
	return efasim.New(o), nil
}

// virtio reads the registers that the driver located through the capabilities of configuration space (VIRTIO 1.2
// §4.1.4).
func virtio(f *evidence.File) (sim.Model, error) {
	type part struct {
		bar int
		at  uint64
	}
	var common, device part
	const vendor = 9
	if len(f.Config) < 64 {
		return nil, fmt.Errorf("configuration space of %d bytes: want 64 or more", len(f.Config))
	}
	// 256 bytes have room for 48 capabilities: a longer list has a loop.
	for at, n := int(f.Config[0x34]), 0; n < 48 && at != 0 && at+16 <= len(f.Config); at, n = int(f.Config[at+1]), n+1 {
		if f.Config[at] != vendor {
			continue
		}
		p := part{int(f.Config[at+4]), uint64(le.Uint32(f.Config[at+8:]))}
		switch f.Config[at+3] {
		case 1:
			common = p
		case 4:
			device = p
		}
	}
	o := virtiosim.Options{MAC: mac(f)}
	sel, queue := uint64(0), uint64(0)
	registers(f, func(bar int, off uint64, e *cmdtrace.Entry) {
		if bar == common.bar && off >= common.at && off < common.at+0x40 {
			switch reg := off - common.at; {
			case reg == 0x00 && e.Kind == cmdtrace.Write: // device_feature_select
				sel = e.Value
			case reg == 0x04 && e.Kind == cmdtrace.Read && sel < 2: // device_feature
				o.Offered |= e.Value << (32 * sel)
			case reg == 0x16 && e.Kind == cmdtrace.Write: // queue_select
				queue = e.Value
			case reg == 0x18 && e.Kind == cmdtrace.Read && queue == 0 && o.Limit == 0: // queue_size
				o.Limit = uint16(e.Value)
			}
		}
		if bar == device.bar && off >= device.at && e.Kind == cmdtrace.Read {
			switch off - device.at {
			case 8:
				o.Pairs = uint16(min(e.Value, 4))
			case 10:
				o.MTU = uint16(e.Value)
			}
		}
	})
	if o.Limit > 256 { // the model's maximum
		o.Limit = 256
	}
	return virtiosim.New(o), nil
}

func ixgbe(f *evidence.File) (sim.Model, error) {
	o := ixgbesim.Options{MAC: mac(f), Kind: map[uint16]ixgbesim.Kind{0x10F7: ixgbesim.KX4, 0x10F8: ixgbesim.Combined,
		0x10FC: ixgbesim.XAUI,
		0x1528: ixgbesim.X540, 0x1560: ixgbesim.X540}[f.ID.Device]}
	m := ixgbesim.New(o)
	const eerd, done = 0x10014, 1 << 1
	word := uint16(0)
	registers(f, func(bar int, off uint64, e *cmdtrace.Entry) {
		switch {
		case bar != 0 || off != eerd:
		case e.Kind == cmdtrace.Write:
			word = uint16(e.Value >> 2 & 0x3FFF)
		case e.Value&done != 0 && word != 0x3F:
			m.SetEEPROM(word, uint16(e.Value>>16))
		}
	})
	for _, e := range f.Trace {
		if e.Name == "bytes 0 to 67 of the SFP+ module" {
			m.SetModule(e.Out)
		}
	}
	if strings.Contains(f.Error, "EEPROM checksum is wrong") {
		m.CorruptEEPROM()
	}
	return m, nil
}
