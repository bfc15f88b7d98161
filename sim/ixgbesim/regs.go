package ixgbesim

import "encoding/binary"

// reg names a register, or the first of an array, by its offset in BAR 0.
type reg uint32

const (
	// General, §8.2.3.1
	regCTRL     reg = 0x00000 // Device Control                     §8.2.3.1.1
	regSTATUS   reg = 0x00008 // Device Status                      §8.2.3.1.2
	regCTRLEXT  reg = 0x00018 // Extended Device Control            §8.2.3.1.3
	regESDP     reg = 0x00020 // Extended SDP Control               §8.2.3.1.4
	regI2CCTL   reg = 0x00028 // I2C Control                        §8.2.3.1.5
	regGCREXT   reg = 0x11050 // PCIe Control Extended              §8.2.3.4
	regCORECTL  reg = 0x14f00 // Core Analog Configuration          Linux, IXGBE_CORECTL
	regEEMNGCTL reg = 0x10110 // Manageability EEPROM Control      §8.2.3.2.4
	regLEDCTL   reg = 0x00200 // LED Control                        §8.2.3.1.6
	regEEC      reg = 0x10010 // EEPROM/Flash Control               §8.2.3.2.1
	regEERD     reg = 0x10014 // EEPROM Read                        §8.2.3.2.2
	regSWSM     reg = 0x10140 // Software Semaphore                 §8.2.3.4.9
	regFWSM     reg = 0x10148 // Firmware Semaphore                 §8.2.3.4.10
	regSWFW     reg = 0x10160 // Software-Firmware Synchronization  §8.2.3.4.11

	// Interrupts, §8.2.3.5
	regEICR     reg = 0x00800 // Cause                             §8.2.3.5.1
	regEICS     reg = 0x00808 // Cause Set                         §8.2.3.5.2
	regEIMS     reg = 0x00880 // Mask Set/Read                     §8.2.3.5.3
	regEIMC     reg = 0x00888 // Mask Clear                        §8.2.3.5.4
	regEIAC     reg = 0x00810 // Auto Clear                        §8.2.3.5.5
	regEIAM     reg = 0x00890 // Auto Mask Enable                  §8.2.3.5.6
	regEICSEX   reg = 0x00a90 // Cause Set, vectors 0 to 63        §8.2.3.5.7
	regEIMSEX   reg = 0x00aa0 // Mask Set/Read, vectors 0 to 63    §8.2.3.5.8
	regEIMCEX   reg = 0x00ab0 // Mask Clear, vectors 0 to 63       §8.2.3.5.9
	regEIAMEX   reg = 0x00ad0 // Auto Mask, vectors 0 to 63        §8.2.3.5.10
	regEITR     reg = 0x00820 // Throttle, 0 to 23                 §8.2.3.5.12
	regEITRHigh reg = 0x12300 // Throttle, 24 to 128
	regIVAR     reg = 0x00900 // Vector Allocation                 §8.2.3.5.14
	regIVARMISC reg = 0x00a00 // Miscellaneous Vector Allocation   §8.2.3.5.15
	regGPIE     reg = 0x00898 // General Purpose Interrupt Enable  §8.2.3.5.18

	// Receive, §8.2.3.7 and §8.2.3.8
	regFCTRL    reg = 0x05080 // Filter Control                    §8.2.3.7.1
	regVLNCTRL  reg = 0x05088 // VLAN Control                      §8.2.3.7.2
	regMCSTCTRL reg = 0x05090 // Multicast Control                 §8.2.3.7.3
	regRXCSUM   reg = 0x05000 // Receive Checksum Control          §8.2.3.7.5
	regRFCTL    reg = 0x05008 // Receive Filter Control            §8.2.3.7.6
	regMTA      reg = 0x05200 // Multicast Table Array             §8.2.3.7.7
	regRAL      reg = 0x0a200 // Receive Address Low               §8.2.3.7.8
	regRAH      reg = 0x0a204 // Receive Address High              §8.2.3.7.9
	regVFTA     reg = 0x0a000 // VLAN Filter Table Array           §8.2.3.7.11
	regMRQC     reg = 0x0ec80 // Multiple Receive Queues Command   §8.2.3.7.12
	regMRQCOld  reg = 0x05818 // the same at its 82598 address
	regRETA     reg = 0x0eb00 // Redirection Table                 §8.2.3.7.14
	regRETAOld  reg = 0x05c00
	regRSSRK    reg = 0x0eb80 // RSS Random Key                    §8.2.3.7.13
	regRSSRKOld reg = 0x05c80
	regETQF     reg = 0x05128 // EType Queue Filter                §8.2.3.7.15
	regETQS     reg = 0x0ec00 // EType Queue Select                §8.2.3.7.16
	regSAQF     reg = 0x0e000 // Source Address Queue Filter       §8.2.3.7.17
	regDAQF     reg = 0x0e200 // Destination Address Queue Filter  §8.2.3.7.18
	regSDPQF    reg = 0x0e400 // Source Destination Port Filter    §8.2.3.7.19
	regFTQF     reg = 0x0e600 // Five-tuple Queue Filter           §8.2.3.7.20
	regL34TIMIR reg = 0x0e800 // L3 L4 Tuples Immediate Interrupt  §8.2.3.7.23
	regRDBAL    reg = 0x01000 // Descriptor Base Address Low       §8.2.3.8.1
	regRDBAH    reg = 0x01004 // Descriptor Base Address High      §8.2.3.8.2
	regRDLEN    reg = 0x01008 // Descriptor Length                 §8.2.3.8.3
	regDCARX    reg = 0x0100c // DCA Control                       §8.2.3.11.1
	regRDH      reg = 0x01010 // Head                              §8.2.3.8.4
	regSRRCTL   reg = 0x01014 // Split Receive Control             §8.2.3.8.7
	regRDT      reg = 0x01018 // Tail                              §8.2.3.8.5
	regRXDCTL   reg = 0x01028 // Descriptor Control                §8.2.3.8.6
	regRSCCTL   reg = 0x0102c // RSC Control                       §8.2.3.8.13
	regRDRXCTL  reg = 0x02f00 // Receive DMA Control               §8.2.3.8.8
	regRXPBSIZE reg = 0x03c00 // Packet Buffer Size                §8.2.3.8.9
	regRXCTRL   reg = 0x03000 // Receive Control                   §8.2.3.8.10
	regRQSMR    reg = 0x02300 // Queue Statistic Mapping           §8.2.3.23.71

	// Transmit, §8.2.3.9
	regDMATXCTL  reg = 0x04a80 // DMA Transmit Control             §8.2.3.9.2
	regDTXFLGL   reg = 0x04a88 // TCP flags of first, middle       §8.2.3.9.3
	regDTXFLGH   reg = 0x04a8c // and last segment                 §8.2.3.9.4
	regTDBAL     reg = 0x06000 // Descriptor Base Address Low      §8.2.3.9.5
	regTDBAH     reg = 0x06004 // Descriptor Base Address High     §8.2.3.9.6
	regTDLEN     reg = 0x06008 // Descriptor Length                §8.2.3.9.7
	regDCATX     reg = 0x0600c // DCA Control                      §8.2.3.11.2
	regTDH       reg = 0x06010 // Head                             §8.2.3.9.8
	regTDT       reg = 0x06018 // Tail                             §8.2.3.9.9
	regTXDCTL    reg = 0x06028 // Descriptor Control               §8.2.3.9.10
	regTDWBAL    reg = 0x06038 // Completion Write-Back Address    §8.2.3.9.11
	regTDWBAH    reg = 0x0603c
	regMTQC      reg = 0x08120 // Multiple Transmit Queues Command §8.2.3.9.15
	regRTTDCS    reg = 0x04900 // DCB Transmit Plane Control       §8.2.3.10.2
	regTQSM      reg = 0x08600 // Queue Statistic Mapping          §8.2.3.23.73
	regSECTXCTRL reg = 0x08800 // Security Transmit Control        §8.2.3.12.1
	regSECTXSTAT reg = 0x08804
	regSECRXCTRL reg = 0x08d00 // Security Receive Control         §8.2.3.12.5
	regSECRXSTAT reg = 0x08d04

	// Flow control, §8.2.3.3
	regFCTTV reg = 0x03200 // Transmit Timer Value                 §8.2.3.3.2
	regFCRTL reg = 0x03220 // Receive Threshold Low                §8.2.3.3.3
	regFCRTH reg = 0x03260 // Receive Threshold High               §8.2.3.3.4
	regFCCFG reg = 0x03d00 // Flow Control Configuration           §8.2.3.3.7
	regMFLCN reg = 0x04294 // MAC Flow Control                     §8.2.3.22.34

	// MAC and link, §8.2.3.22
	regHLREG0 reg = 0x04240 // Highlander Control 0                §8.2.3.22.8
	regMAXFRS reg = 0x04268 // Max Frame Size                      §8.2.3.22.13
	regMSCA   reg = 0x0425c // MDI Single Command and Address      §8.2.3.22.11
	regMSRWD  reg = 0x04260 // MDI Single Read and Write Data      §8.2.3.22.12
	regAUTOC  reg = 0x042a0 // Auto-Negotiation Control            §8.2.3.22.19
	regLINKS  reg = 0x042a4 // Link Status                         §8.2.3.22.20
	regAUTOC2 reg = 0x042a8 // Auto-Negotiation Control 2          §8.2.3.22.22
	regANLP1  reg = 0x042b0 // Link Partner Control Word 1         §8.2.3.22.25
	regMMNGC  reg = 0x042d0 // MAC Manageability Control           §8.2.3.22.30
	regLINKS2 reg = 0x04324 // Link Status 2                       §8.2.3.22.21

	// Flow director, §8.2.3.21
	regFDIRCTRL reg = 0x0ee00
	regFDIRCMD  reg = 0x0ee2c

	// Time, §8.2.3.26
	regSYSTIML reg = 0x08c0c
	regSYSTIMH reg = 0x08c10
	regTIMINCA reg = 0x08c14 // Increment Attributes
	regTSYNCRX reg = 0x05188 // Rx Time Sync Control
	regTSYNCTX reg = 0x08c00 // Tx Time Sync Control
	regRXSTMP  reg = 0x051e8 // Rx Timestamp Low
	regRXSTMPH reg = 0x051a4 // Rx Timestamp High
	regTXSTMP  reg = 0x08c04 // Tx Timestamp Low, High
	regRXMTRL  reg = 0x05120 // Rx Message Type Register Low: UDP port, type of version 2, control field of version 1

	// Statistics, §8.2.3.23: all clear on read
	regCRCERRS reg = 0x04000
	regMPC     reg = 0x03fa0 // missed, for each packet buffer
	regRLEC    reg = 0x04040 // length errors
	regLXONTX  reg = 0x03f60
	regLXOFFTX reg = 0x03f68
	regLXONRX  reg = 0x041a4
	regLXOFFRX reg = 0x041a8
	regPRC     reg = 0x0405c // received by size: 64, 65 to 127, 255, 511, 1023, more
	regBPRC    reg = 0x04078
	regMPRC    reg = 0x0407c
	regGPRC    reg = 0x04074
	// good frames before the filters; then octets, with the FCS as in GORC (no public source says)
	regRXNFGPC  reg = 0x041b0
	regRXDGPC   reg = 0x02f50 // good frames to host memory; likewise
	regTXDGPC   reg = 0x087a0 // good frames from host memory; likewise
	regGORCL    reg = 0x04088
	regGPTC     reg = 0x04080
	regGOTCL    reg = 0x04090
	regRUC      reg = 0x040a4
	regROC      reg = 0x040ac
	regTORL     reg = 0x040c0
	regTPR      reg = 0x040d0
	regTPT      reg = 0x040d4
	regPTC      reg = 0x040d8 // sent by size
	regMPTC     reg = 0x040f0
	regBPTC     reg = 0x040f4
	regXEC      reg = 0x04120 // receive checksum errors
	regFDIRMISS reg = 0x0ee5c
	regQPRC     reg = 0x01030 // by queue counter
	regQBRC     reg = 0x01034
	regQPRDC    reg = 0x01430
	regQPTC     reg = 0x06030
	regQBTC     reg = 0x08700
)

// Bits that the model acts on.
const (
	ctrlGIODIS = 1 << 2 // PCIe master disable
	ctrlLRST   = 1 << 3
	ctrlRST    = 1 << 26

	statusLANID  = 2 // bits 3:2, the port
	statusLinkUp = 1 << 7
	statusGIO    = 1 << 19 // PCIe master requests enabled

	esdpSDP2   = 1 << 2  // in: module present (wired so on Intel's boards)
	esdpSDP3   = 1 << 3  // out: laser off
	gcrBUFCLR  = 1 << 30 // discards pending transactions
	esdpSDP5   = 1 << 5  // out: rate select of the module
	esdpSDP3IO = 1 << 11
	esdpSDP5IO = 1 << 13

	eemngFixed   = 0x80000196 // read from a board, without CFG_DONE
	eemngCFGDONE = 1 << 18    // CFG_DONE of port 0; port 1's is the next bit

	eecREQ, eecGNT   = 1 << 6, 1 << 7
	eecPRES, eecARD  = 1 << 8, 1 << 9
	eecADDR, eecSIZE = 1 << 10, 8 << 11 // 16 address bits; 2^(8+6) words
	eecSK, eecCS     = 1 << 0, 1 << 1
	eecDI, eecDO     = 1 << 2, 1 << 3
	eecBits          = eecSK | eecCS | eecDI
	eerdSTART        = 1 << 0
	eerdDONE         = 1 << 1

	swsmSMBI    = 1 << 0
	swsmSWESMBI = 1 << 1
	swfwNVM     = 1 << 0
	swfwPHY0    = 1 << 1
	swfwMAC     = 1 << 3
	swfwREGSMP  = 1 << 31

	gpieMSIX  = 1 << 4  // Multiple_MSIX
	gpieOCD   = 1 << 5  // other causes only are cleared by a read of EICR
	gpieEIAME = 1 << 30 // automatic masking
	eicrMISS  = 1 << 17
	eicrLSC   = 1 << 20
	eicrQueue = 0x0000ffff
	eicrOther = 0x7fff0000
	eitrWDIS  = 1 << 31
	ivarValid = 1 << 7

	fctrlMPE, fctrlUPE, fctrlBAM = 1 << 8, 1 << 9, 1 << 10
	vlnVFE                       = 1 << 30
	mcstMFE                      = 1 << 2
	rahAV                        = 1 << 31
	rxcsumPCSD                   = 1 << 13
	rscctlRSCEN                  = 1 << 0

	ftqfEnable, ftqfPoolMask   = 1 << 31, 1 << 30
	mrqcRSS                    = 1
	rssTCP4, rssIP4            = 1 << 16, 1 << 17
	rssIP6, rssTCP6            = 1 << 20, 1 << 21
	rssUDP4, rssUDP6           = 1 << 22, 1 << 23
	srrctlDROP                 = 1 << 28
	rxdctlENABLE, rxdctlVME    = 1 << 25, 1 << 30
	rxdctlRLPML, rxdctlRLPMLEN = 0x3fff, 1 << 15 // X540: longest frame for the queue
	txdctlENABLE, txdctlSWFLSH = 1 << 25, 1 << 26
	rdrxctlCRCSTRIP            = 1 << 1
	rdrxctlDMAIDONE            = 1 << 3
	rxctrlRXEN                 = 1 << 0
	dmatxctlTE                 = 1 << 0
	rttdcsARBDIS               = 1 << 6
	secrxDIS                   = 1 << 1
	secReady, secOff           = 1 << 0, 1 << 1
	mflcnDPF, mflcnRFCE        = 1 << 1, 1 << 3
	fccfgTFCE                  = 1 << 3
	fcEnable                   = 1 << 31 // FCRTH.FCEN, FCRTL.XONE

	hlregTXCRCEN, hlregRXCRCSTRP, hlregJUMBO = 1 << 0, 1 << 1, 1 << 2
	hlregTXPADEN                             = 1 << 10
	hlregLPBK                                = 1 << 15

	autocRestart  = 1 << 12
	autocLMSShift = 13
	linksANComp   = 1 << 31
	linksUp       = 1 << 30
	links10G      = 3 << 28
	links1G       = 2 << 28
	links100M     = 1 << 28
	links2AN      = 1 << 6
	mmngcVeto     = 1 << 0
	anlp1State    = 0x10 << 12 // AN arbitration has left its first state
	anlp1Pause    = 3 << 10
	autoc2Disable = 7 << 28

	fdirINITDONE = 1 << 3
	fdirPERFECT  = 1 << 4 // filters match exactly, not by a hash
	fdirAdd      = 1      // FDIRCMD.CMD
	mscaMDI      = 1 << 30
)

const (
	queues   = 128
	barSize  = 0x80000 // registers below 128 KB; above is the flash, which is not modelled
	regsEnd  = 0x20000
	cacheMax = 40 // descriptors on chip for each queue §7.2.3.4.1
)

// rxReg returns the offset of receive queue q's register; r is that of queue 0.
func rxReg(r reg, q int) reg {
	if q < 64 {
		return r + 0x40*reg(q)
	}
	return r + 0xc000 + 0x40*reg(q-64)
}

func txReg(r reg, q int) reg { return r + 0x40*reg(q) }

func (r reg) String() string { return table.Label(r) }

// RegisterName implements sim.Namer. A second address has the name of the first.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	if bar != 0 || off >= regsEnd {
		return "", le
	}
	return table.Name(alias(reg(off))), le
}
