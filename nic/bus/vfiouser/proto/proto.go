// Package proto implements the vfio-user wire protocol, messages with their framing and file descriptors, for the
// client (package vfiouser) and the server (package vfioserver).
//
// Source: the vfio-user specification, version 0.0 (QEMU docs/interop/vfio-user.rst), and <linux/vfio.h> for the
// structures it borrows. All fields are little endian. There are two extensions: a server offers the memory behind the
// doorbells of BAR n as region RegionShadow+n, with a type capability that QEMU ignores, and the model's transaction
// counts as region RegionCounts.
package proto

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrProtocol means that the other side violated the protocol. The connection is closed.
var ErrProtocol = errors.New("vfio-user: protocol error")

// ErrClosed means that the connection was lost: the other side closed it, did not reply in time, or violated the
// protocol.
var ErrClosed = errors.New("vfio-user: connection is closed")

// Command is the type of a message.
type Command uint16

const (
	CmdVersion       Command = 1
	CmdDMAMap        Command = 2
	CmdDMAUnmap      Command = 3
	CmdGetInfo       Command = 4
	CmdGetRegionInfo Command = 5
	CmdGetIRQInfo    Command = 7
	CmdSetIRQs       Command = 8
	CmdRegionRead    Command = 9
	CmdRegionWrite   Command = 10
	CmdDMARead       Command = 11
	CmdDMAWrite      Command = 12
	CmdReset         Command = 13
	CmdWriteMulti    Command = 15
)

func (c Command) String() string {
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
	HeaderSize = 16
	maxBody    = MaxTransfer + 256
	maxFDs     = 16 // in one message

	flagTypeMask = 0xf
	FlagReply    = 1
	FlagNoReply  = 1 << 4
	FlagError    = 1 << 5
)

// Properties that a server announces in VERSION.
const (
	MaxTransfer = 1 << 20 // bytes of data in one message
	// AnnouncedMaps is the most that QEMU accepts; above it, QEMU refuses the server ("max_dma_maps too large").
	AnnouncedMaps = 65535
	// MaxMaps is how many maps a server accepts. QEMU does not stop at AnnouncedMaps: with an IOMMU it sends a map for
	// each 4 KiB, and a guest may register 4 GiB.
	MaxMaps = 1 << 20
)

// Timeout limits each wait for the other side during a call.
const Timeout = 10 * time.Second

// Regions, numbered as by VFIO for a PCI function.
const (
	RegionROM    = 6
	RegionConfig = 7
	RegionVGA    = 8
	RegionShadow = 9  // +n for BAR n: our extension
	RegionCounts = 15 // the model's PCIe transactions, as Counts: our extension
	NumRegions   = 16

	ConfigSize = 4096

	RegionRead  = 1 << 0
	RegionWrite = 1 << 1
	RegionMmap  = 1 << 2
	RegionCaps  = 1 << 3

	CapSparseMmap = 1 // areas that can be mapped
	CapType       = 2 // type and subtype of a region that is not in the standard

	ShadowType    = 1<<31 | 0x5242 // a vendor's type, "BR"
	ShadowSubtype = 1
)

// Interrupts: indices and flags of <linux/vfio.h>.
const (
	IRQINTx = 0
	IRQMSI  = 1
	IRQMSIX = 2
	NumIRQs = 5 // including error and request, which are not implemented

	IRQEventFD    = 1 << 0
	IRQMaskable   = 1 << 1
	IRQAutomasked = 1 << 2
	IRQNoResize   = 1 << 3

	SetDataNone    = 1 << 0
	SetDataBool    = 1 << 1
	SetDataEventFD = 1 << 2
	SetMask        = 1 << 3
	SetUnmask      = 1 << 4
	SetTrigger     = 1 << 5
)

const (
	InfoReset = 1 << 0
	InfoPCI   = 1 << 1

	MapForRead  = 1 << 0
	MapForWrite = 1 << 1

	UnmapDirty = 1 << 0
	UnmapAll   = 1 << 1
)

var le = binary.LittleEndian

// Message bodies, without the header.
type (
	DMAMapBody struct {
		Argsz, Flags       uint32
		Offset, Addr, Size uint64
	}
	DMAUnmapBody struct {
		Argsz, Flags uint32
		Addr, Size   uint64
	}
	InfoBody       struct{ Argsz, Flags, Regions, IRQs uint32 }
	RegionInfoBody struct {
		Argsz, Flags, Index, CapOffset uint32
		Size, Offset                   uint64
	}
	CapHeader struct {
		ID, Version uint16
		Next        uint32
	}
	SparseCap struct {
		CapHeader
		Areas, _ uint32
	}
	SparseArea struct{ Offset, Size uint64 }
	TypeCap    struct {
		CapHeader
		Type, Subtype uint32
	}
	IRQInfoBody struct{ Argsz, Flags, Index, Count uint32 }
	SetIRQsBody struct{ Argsz, Flags, Index, Start, Count uint32 }
	AccessBody  struct { // followed by data
		Offset        uint64
		Region, Count uint32
	}
	WriteOne struct {
		AccessBody
		Data [8]byte
	}
	DMABody struct{ Addr, Count uint64 } // followed by data
)

// Counts is the content of RegionCounts: PCIe transactions since the model was created.
type Counts struct{ MMIORead, MMIOWrite, DMARead, DMAWrite, Interrupts uint64 }

// Decode fills v from the start of body and returns the rest. It ignores the redundant argsz in these structures.
func Decode(body []byte, v any) ([]byte, error) {
	n, err := binary.Decode(body, le, v)
	if err != nil {
		return nil, fmt.Errorf("%w: body of %d bytes for %T", ErrProtocol, len(body), v)
	}
	return body[n:], nil
}

// Encode concatenates byte slices and structures of fixed size.
func Encode(parts ...any) []byte {
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

// Version is the start of VERSION's body; capabilities follow as JSON.
type Version struct{ Major, Minor uint16 }

// Capabilities are what one side supports.
type Capabilities struct {
	MaxMsgFDs     int  `json:"max_msg_fds"`
	MaxDataXfer   int  `json:"max_data_xfer_size"`
	PageSizes     int  `json:"pgsizes"`
	MaxDMAMaps    int  `json:"max_dma_maps"`
	WriteMultiple bool `json:"write_multiple"`
}

// VersionBody returns the body that both our client and our server send. QEMU refuses a reply that allows more than the
// 16 descriptors it supports.
func VersionBody() []byte {
	j, _ := json.Marshal(map[string]Capabilities{"capabilities": {maxFDs, MaxTransfer, 4096, AnnouncedMaps, true}})
	return Encode(Version{0, 0}, j, []byte{0})
}

// ParseVersion returns the other side's capabilities, with the specification's defaults for missing ones.
func ParseVersion(body []byte) (Capabilities, error) {
	c := struct{ Capabilities Capabilities }{Capabilities{MaxMsgFDs: 1, MaxDataXfer: 1 << 20, PageSizes: 4096,
		MaxDMAMaps: 65535}}
	var v Version
	rest, err := Decode(body, &v)
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
