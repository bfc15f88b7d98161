package toy

import "unsafe"

// reg is a register of BAR 0, by its offset.
type reg uint32

const (
	regMAGIC   reg = 0x00 // MAGIC    identity              RO
	regCONTROL reg = 0x04 // CONTROL                        RW
	regSTATUS  reg = 0x08 // STATUS                         RO
	regMACLO   reg = 0x0c // MAC      low 32 bits           RW
	regMACHI   reg = 0x10 // MAC      high 16 bits          RW
	regRXLO    reg = 0x20 // RX       ring address, low     RW; 24h high, 28h entries, 2ch buffer bytes
	regTXLO    reg = 0x30 // TX       ring address, low     RW; 34h high, 38h entries
	regRXCOUNT reg = 0x40 // RXCOUNT  frames received       RO
	regMISSED  reg = 0x44 // MISSED   no descriptor         RO
	regTXCOUNT reg = 0x48 // TXCOUNT  frames sent           RO
	regTXERROR reg = 0x4c // TXERROR                        RO
)

const (
	magic = 0x52425944

	controlEnable = 1 << 0
	controlReset  = 1 << 31
	statusLink    = 1 << 0
)

// Doorbells, in BAR 2: free-running numbers of descriptors.
const (
	bellRX = 0x00
	bellTX = 0x40
)

// desc is a descriptor of either ring. The driver writes all of it; the device writes word back.
type desc struct {
	addr uint64
	word uint64 // length 15:0, flags 31:16
}

const (
	descDone  = 1 << 16
	descError = 1 << 17

	descSize = 16
)

// The compiler checks the layout.
var _ [descSize]byte = [unsafe.Sizeof(desc{})]byte{}
