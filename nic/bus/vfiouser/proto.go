// Package vfiouser speaks vfio-user, the protocol by which a PCI function in one process is used by another: a server that
// shows a device model to QEMU (10.1 or later) or to a driver of ours, and a client that is a pci.Function.
//
// Source: the vfio-user specification, version 0.0 (QEMU docs/interop/vfio-user.rst), and <linux/vfio.h> for the structures
// it borrows. All fields are little endian. One thing is of our own: a server offers the memory behind the doorbells of BAR
// n as region shadowRegion+n, which has a type capability that QEMU does not know and leaves alone.
package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrProtocol means that the other side broke the protocol. The connection is closed.
var ErrProtocol = errors.New("vfio-user: protocol error")

// ErrClosed means that the connection is gone: the other side closed it, did not answer in time, or broke the protocol.
var ErrClosed = errors.New("vfio-user: connection is closed")

type command uint16

const (
	cmdVersion       command = 1
	cmdDMAMap        command = 2
	cmdDMAUnmap      command = 3
	cmdGetInfo       command = 4
	cmdGetRegionInfo command = 5
	cmdGetIRQInfo    command = 7
	cmdSetIRQs       command = 8
	cmdRegionRead    command = 9
	cmdRegionWrite   command = 10
	cmdDMARead       command = 11
	cmdDMAWrite      command = 12
	cmdReset         command = 13
	cmdWriteMulti    command = 15
)

func (c command) String() string {
	names := [...]string{1: "VERSION", "DMA_MAP", "DMA_UNMAP", "DEVICE_GET_INFO", "DEVICE_GET_REGION_INFO",
		"DEVICE_GET_REGION_IO_FDS", "DEVICE_GET_IRQ_INFO", "DEVICE_SET_IRQS", "REGION_READ", "REGION_WRITE", "DMA_READ",
		"DMA_WRITE", "DEVICE_RESET", "DIRTY_PAGES", "REGION_WRITE_MULTI"}
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Header: message id, command, size with the header, flags, errno.
const (
	headerSize = 16
	maxBody    = maxTransfer + 256
	maxFDs     = 16 // in one message

	flagTypeMask = 0xf
	flagReply    = 1
	flagNoReply  = 1 << 4
	flagError    = 1 << 5
)

// What a server says of itself in VERSION.
const (
	maxTransfer = 1 << 20 // bytes of data in one message
	maxMaps     = 65535
)

// timeout bounds each wait for the other side while something is under way.
const timeout = 10 * time.Second

// Regions, as VFIO numbers those of a PCI function.
const (
	regionROM    = 6
	regionConfig = 7
	regionVGA    = 8
	shadowRegion = 9  // +n for BAR n: ours
	countsRegion = 15 // the PCIe transactions that the model counted, as sim.Counts in this order, 8 bytes each: ours
	numRegions   = 16

	configSize = 4096

	regionRead  = 1 << 0
	regionWrite = 1 << 1
	regionMmap  = 1 << 2
	regionCaps  = 1 << 3

	capSparseMmap = 1 // areas that can be mapped
	capType       = 2 // type and subtype of a region that is not the standard's

	shadowType    = 1<<31 | 0x5242 // a vendor's type, "BR"
	shadowSubtype = 1
)

// Interrupts: indices and flags of <linux/vfio.h>.
const (
	irqINTx = 0
	irqMSIX = 2
	numIRQs = 5 // with MSI, error and request, of which there are none

	irqEventFD    = 1 << 0
	irqMaskable   = 1 << 1
	irqAutomasked = 1 << 2
	irqNoResize   = 1 << 3

	setDataNone    = 1 << 0
	setDataBool    = 1 << 1
	setDataEventFD = 1 << 2
	setMask        = 1 << 3
	setUnmask      = 1 << 4
	setTrigger     = 1 << 5
)

const (
	infoReset = 1 << 0
	infoPCI   = 1 << 1

	dmaRead  = 1 << 0
	dmaWrite = 1 << 1

	unmapDirty = 1 << 0
	unmapAll   = 1 << 1
)

var le = binary.LittleEndian

// Bodies, without the header.
type (
	dmaMapBody struct {
		Argsz, Flags       uint32
		Offset, Addr, Size uint64
	}
	dmaUnmapBody struct {
		Argsz, Flags uint32
		Addr, Size   uint64
	}
	infoBody       struct{ Argsz, Flags, Regions, IRQs uint32 }
	regionInfoBody struct {
		Argsz, Flags, Index, CapOffset uint32
		Size, Offset                   uint64
	}
	capHeader struct {
		ID, Version uint16
		Next        uint32
	}
	sparseCap struct {
		capHeader
		Areas, _ uint32
	}
	sparseArea struct{ Offset, Size uint64 }
	typeCap    struct {
		capHeader
		Type, Subtype uint32
	}
	irqInfoBody struct{ Argsz, Flags, Index, Count uint32 }
	setIRQsBody struct{ Argsz, Flags, Index, Start, Count uint32 }
	accessBody  struct { // and data
		Offset        uint64
		Region, Count uint32
	}
	writeOne struct {
		accessBody
		Data [8]byte
	}
	dmaBody struct{ Addr, Count uint64 } // and data
)

// decode fills v from the front of body and returns the rest. argsz in these structures is redundant and not looked at.
func decode(body []byte, v any) ([]byte, error) {
	n, err := binary.Decode(body, le, v)
	if err != nil {
		return nil, fmt.Errorf("%w: body of %d bytes for %T", ErrProtocol, len(body), v)
	}
	return body[n:], nil
}

func encode(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		if raw, ok := p.([]byte); ok {
			b = append(b, raw...)
			continue
		}
		b, _ = binary.Append(b, le, p) // fixed-size structures only
	}
	return b
}

type version struct{ Major, Minor uint16 }

type capabilities struct {
	MaxMsgFDs     int  `json:"max_msg_fds"`
	MaxDataXfer   int  `json:"max_data_xfer_size"`
	PageSizes     int  `json:"pgsizes"`
	MaxDMAMaps    int  `json:"max_dma_maps"`
	WriteMultiple bool `json:"write_multiple"`
}

// versionBody is what both sides of ours send. QEMU refuses a reply with more than the 16 descriptors that it takes.
func versionBody() []byte {
	j, _ := json.Marshal(map[string]capabilities{"capabilities": {maxFDs, maxTransfer, 4096, maxMaps, true}})
	return encode(version{0, 0}, j, []byte{0})
}

// parseVersion returns what the other side can do, with the specification's defaults for what it does not say.
func parseVersion(body []byte) (capabilities, error) {
	c := struct{ Capabilities capabilities }{capabilities{MaxMsgFDs: 1, MaxDataXfer: 1 << 20, PageSizes: 4096, MaxDMAMaps: 65535}}
	var v version
	rest, err := decode(body, &v)
	if err != nil {
		return c.Capabilities, err
	}
	if v.Major != 0 {
		return c.Capabilities, fmt.Errorf("%w: version %d.%d, expected 0.0", ErrProtocol, v.Major, v.Minor)
	}
	if text, _, _ := bytes.Cut(rest, []byte{0}); len(text) > 0 {
		if err := json.Unmarshal(text, &c); err != nil {
			return c.Capabilities, fmt.Errorf("%w: capabilities %.80q: %v", ErrProtocol, text, err)
		}
	}
	if k := c.Capabilities; k.MaxMsgFDs < 1 || k.MaxDataXfer < 4096 {
		return k, fmt.Errorf("%w: impossible capabilities %+v", ErrProtocol, k)
	}
	return c.Capabilities, nil
}
