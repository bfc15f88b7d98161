package ixgbe

// reg is the offset of a 32-bit register in BAR 0 (datasheet §8.2).
type reg uint32

// Control, status, interrupts, EEPROM and semaphores.
const (
	regCTRL     reg = 0x00000 // CTRL     Device Control                    RW   §8.2.3.1
	regSTATUS   reg = 0x00008 // STATUS   Device Status                     RO   §8.2.3.1
	regCTRLEXT  reg = 0x00018 // CTRL_EXT Extended Device Control           RW   §8.2.3.1
	regESDP     reg = 0x00020 // ESDP     Extended SDP Control              RW   §8.2.3.1
	regI2CCTL   reg = 0x00028 // I2CCTL   I2C Control, to the module        RW   §8.2.3.1.5
	regGCREXT   reg = 0x11050 // GCR_EXT  PCIe Control Extended             RW   §8.2.3.4
	regCORECTL  reg = 0x14F00 // CORECTL  Core Analog Configuration         WO   Linux, IXGBE_CORECTL
	regEIMC     reg = 0x00888 // EIMC     Interrupt Mask Clear              WO   §8.2.3.5
	regEEC      reg = 0x10010 // EEC      EEPROM/Flash Control              RW   §8.2.3.2
	regEERD     reg = 0x10014 // EERD     EEPROM Read                       RW   §8.2.3.2
	regSWSM     reg = 0x10140 // SWSM     Software Semaphore                RW   §8.2.3.4
	regSWFWSYNC reg = 0x10160 // SW_FW_SYNC Software-Firmware Synchronization RW §8.2.3.4
)

const (
	ctrlMasterDisable = 1 << 2  // PCIe Master Disable
	ctrlLRST          = 1 << 3  // Link Reset
	ctrlRST           = 1 << 26 // Device Reset

	statusMasterEnabled = 1 << 19 // PCIe Master Enable Status
	statusLANLSB        = 2       // LAN ID, the port's number, 2 bits

	ctrlExtNSDis   = 1 << 16 // No Snoop Disable
	ctrlExtDrvLoad = 1 << 28 // Driver loaded, for firmware

	gcrBuffersClear = 1 << 30 // discards requests that are pending

	esdpSDP2   = 1 << 2  // data of SDP2: there is a module in the cage
	esdpSDP3   = 1 << 3  // data of SDP3: the SFP+ module's TX_DISABLE
	esdpSDP5   = 1 << 5  // data of SDP5: the module's rate select, high for 10 Gb/s
	esdpSDP5IO = 1 << 13 // SDP5 is an output

	i2cClockIn  = 1 << 0
	i2cClockOut = 1 << 1 // 0 pulls the line low
	i2cDataIn   = 1 << 2
	i2cDataOut  = 1 << 3 // 0 pulls the line low

	eecARD     = 1 << 9 // Auto-Read Done
	eecPresent = 1 << 8 // EEPROM Present
	eecSizeLSB = 11     // 4 bits: log2 of the words, less 6

	eerdStart   = 1 << 0
	eerdDone    = 1 << 1
	eerdAddrLSB = 2
	eerdDataLSB = 16

	swsmSMBI    = 1 << 0 // held by one driver of the device; a read takes it
	swsmSWESMBI = 1 << 1 // held by software against firmware

	syncNVM      = 1 << 0 // EEPROM, NVM; owned by software. Firmware's bits are syncFirmware higher
	syncPHY0     = 1 << 1 // PHY of port 0; 1 << 2 of port 1
	syncMAC      = 1 << 3 // shared MAC registers
	syncFirmware = 5
	syncFlash    = 1 << 4  // X540: hardware writes the flash
	syncREGSMP   = 1 << 31 // X540: the register is held; a read takes it
)

// regEIMCEX is the interrupt mask clear of queues 32n to 32n+31 (n = 0 to 3).
func regEIMCEX(n int) reg { return 0x00AB0 + reg(4*n) } // EIMC_EX  Extended Interrupt Mask Clear  WO  §8.2.3.5

// Link.
const (
	regHLREG0 reg = 0x04240 // HLREG0 Highlander Control 0   RW  §8.2.3.22
	regMAXFRS reg = 0x04268 // MAXFRS Max Frame Size         RW  §8.2.3.22
	regMFLCN  reg = 0x04294 // MFLCN  MAC Flow Control       RW  §8.2.3.22
	regAUTOC  reg = 0x042A0 // AUTOC  Auto-Negotiation Control RW §8.2.3.22
	regLINKS  reg = 0x042A4 // LINKS  Link Status            RO  §8.2.3.22
	regMSCA   reg = 0x0425C // MSCA   MDI Single Command and Address   RW  §8.2.3.22.11
	regMSRWD  reg = 0x04260 // MSRWD  MDI Single Read and Write Data   RW  §8.2.3.22.12
	regMMNGC  reg = 0x042D0 // MMNGC  MAC Manageability Control        RO  §8.2.3.22
	regFCCFG  reg = 0x03D00 // FCCFG  Flow Control Configuration RW §8.2.3.3
)

const (
	hlregTxCRCEn    = 1 << 0  // append the CRC
	hlregRxCRCStrip = 1 << 1  // strip the CRC
	hlregJumboEn    = 1 << 2  // frames up to MAXFRS
	hlregTxPadEn    = 1 << 10 // pad to 64 bytes
	hlregLoopback   = 1 << 15

	mflcnRPFCE = 1 << 2 // receive priority flow control
	mflcnRFCE  = 1 << 3 // receive link flow control

	regAUTOC2        reg = 0x042A8 // AUTOC2 Auto-Negotiation Control 2 RW §8.2.3.22
	autoc2SFI            = 2 << 16 // 10 Gb/s serial PMA/PMD: SFI
	autoc2SerialMask     = 3 << 16
	autoc2Disable        = 7 << 28 // link disable in D3 and D0: left by a driver that turned the port off

	autocRestart = 1 << 12 // restart auto-negotiation, or the link without it
	autocLMSLSB  = 13      // Link Mode Select, 3 bits
	autocLMSMask = 7 << 13 //
	lmsParallel  = 1       // 10 Gb/s over four lanes, without auto-negotiation
	lmsSFI       = 3       // 10 Gb/s serial, without auto-negotiation
	lmsKX        = 4       // 4, 6 and 7: KX/KX4/KR with clause 73 auto-negotiation

	lmsSGMII = 5 //

	mscaPHYLSB  = 21 // PHY address; below it MMD 20:16 and register 15:0
	mscaAddress = 0 << 26
	mscaWrite   = 1 << 26
	mscaRead    = 3 << 26
	mscaCommand = 1 << 30 // starts the cycle; clears itself

	msrwdReadLSB = 16 // position of the read data; 15:0 is the write data

	mmngcVeto = 1 << 0 // firmware allows no change of the link

	regANLP1   reg = 0x042B0   // ANLP1  Auto-Neg Link Partner Control Word 1  RO  §8.2.3.22
	anlp1State     = 0xF << 16 // state of the arbitration, 0 before it starts

	linksUp       = 1 << 30
	linksSpeedLSB = 28 // 2 bits: 1 = 100 Mb/s, 2 = 1 Gb/s, 3 = 10 Gb/s
)

// Receive.
const (
	regRXCTRL    reg = 0x03000 // RXCTRL    Receive Control               RW  §8.2.3.8
	regRDRXCTL   reg = 0x02F00 // RDRXCTL   Receive DMA Control           RW  §8.2.3.8
	regSECRXCTRL reg = 0x08D00 // SECRXCTRL Security Rx Control           RW  §8.2.3.12
	regSECRXSTAT reg = 0x08D04 // SECRXSTAT Security Rx Status            RO  §8.2.3.12
	regFCTRL     reg = 0x05080 // FCTRL     Filter Control                RW  §8.2.3.7
	regVLNCTRL   reg = 0x05088 // VLNCTRL   VLAN Control                  RW  §8.2.3.7
	regMCSTCTRL  reg = 0x05090 // MCSTCTRL  Multicast Control             RW  §8.2.3.7
	regRXCSUM    reg = 0x05000 // RXCSUM    Receive Checksum Control      RW  §8.2.3.7
	regRFCTL     reg = 0x05008 // RFCTL     Receive Filter Control        RW  §8.2.3.7
	regMRQC      reg = 0x05818 // MRQC      Multiple Receive Queues       RW  §8.2.3.7
)

const (
	rxctrlRXEN = 1 << 0

	rdrxctlCRCStrip  = 1 << 1
	rdrxctlDMAIDone  = 1 << 3     // DMA Init Done
	rdrxctlRSCFrst   = 0x1F << 17 // must be zero
	rdrxctlRSCACKC   = 1 << 25    // must be one
	rdrxctlFCOEWrFix = 1 << 26    // must be one

	secrxRxDis = 1 << 1
	secrxReady = 1 << 0

	fctrlMPE = 1 << 8  // Multicast Promiscuous
	fctrlUPE = 1 << 9  // Unicast Promiscuous
	fctrlBAM = 1 << 10 // Broadcast Accept

	vlnctrlVFE = 1 << 30 // VLAN Filter Enable

	mcstctrlMFE = 1 << 2 // Multicast Filter Enable; MO = 0 selects address bits 47:36

	rxcsumPCSD = 1 << 13 // the RSS hash instead of the fragment checksum in the write-back

	rfctlRSCDis = 1 << 5 // no receive side coalescing

	mrqcRSS     = 1       // MRQE: RSS alone
	mrqcIPv4    = 1 << 17 // fields that are hashed
	mrqcIPv6    = 1 << 20
	mrqcIPv4UDP = 1 << 22
	mrqcIPv6UDP = 1 << 23
)

func regRXPBSIZE(n int) reg { return 0x03C00 + reg(4*n) } // RXPBSIZE Receive Packet Buffer Size  RW  n=0..7   §8.2.3.8
func regMTA(n int) reg      { return 0x05200 + reg(4*n) } // MTA      Multicast Table Array       RW  n=0..127 §8.2.3.7
func regRAL(n int) reg      { return 0x05400 + reg(8*n) } // RAL      Receive Address Low         RW  n=0..15  §8.2.3.7
func regRAH(n int) reg      { return 0x05404 + reg(8*n) } // RAH      Receive Address High        RW  n=0..15  §8.2.3.7
func regRETA(n int) reg     { return 0x05C00 + reg(4*n) } // RETA     Redirection Table           RW  n=0..31  §8.2.3.7
func regRSSRK(n int) reg    { return 0x05C80 + reg(4*n) } // RSSRK    RSS Random Key              RW  n=0..9   §8.2.3.7

func regRDBAL(q int) reg  { return 0x01000 + reg(0x40*q) } // RDBAL   Rx Descriptor Base Low    RW  q=0..63  §8.2.3.8
func regRDBAH(q int) reg  { return 0x01004 + reg(0x40*q) } // RDBAH   Rx Descriptor Base High   RW  q=0..63  §8.2.3.8
func regRDLEN(q int) reg  { return 0x01008 + reg(0x40*q) } // RDLEN   Rx Descriptor Length      RW  q=0..63  §8.2.3.8
func regRDT(q int) reg    { return 0x01018 + reg(0x40*q) } // RDT     Rx Descriptor Tail        RW  q=0..63  §8.2.3.8
func regRXDCTL(q int) reg { return 0x01028 + reg(0x40*q) } // RXDCTL  Rx Descriptor Control     RW  q=0..63  §8.2.3.8
func regRSCCTL(q int) reg { return 0x0102C + reg(0x40*q) } // RSCCTL  RSC Control               RW  q=0..63  §8.2.3.8
func regSRRCTL(q int) reg { return 0x02100 + reg(4*q) }    // SRRCTL  Split Receive Control     RW  q=0..15  §8.2.3.8
// DCA_RXCTRL Rx DCA Control RW q=0..15 §8.2.3.11
func regDCARXCTRL(q int) reg { return 0x02200 + reg(4*q) }

const (
	// DCA_RXCTRL: relaxed ordering, all on after a reset. The datasheet requires the first one to be off (§4.6.7).
	// Linux and DPDK clear the others, because some root ports reorder other writes, too.
	dcarxStatus = 1 << 12
	dcarxData   = 1 << 13
	dcarxHeader = 1 << 15

	rahAV = 1 << 31 // Address Valid

	rxdctlEnable = 1 << 25
	rxdctlVME    = 1 << 30 // strip VLAN tags

	srrctlOneBuf = 1 << 25 // DESCTYPE 001b: advanced, one buffer
	srrctlDropEn = 1 << 28 // drop at once if the ring is empty, so that one slow queue does not block the others
)

// Transmit.
const (
	regDMATXCTL  reg = 0x04A80 // DMATXCTL  DMA Tx Control              RW  §8.2.3.9
	regDTXMXSZRQ reg = 0x08100 // DTXMXSZRQ DMA Tx Max Size Requests    RW  §8.2.3.9
	regRTTDCS    reg = 0x04900 // RTTDCS    DCB Tx Descriptor Plane Control RW §8.2.3.10
	regMTQC      reg = 0x08120 // MTQC      Multiple Tx Queues Command  RW  §8.2.3.9
)

// TXPBSIZE Transmit Packet Buffer Size RW n=0..7 §8.2.3.9
func regTXPBSIZE(n int) reg { return 0x0CC00 + reg(4*n) }

// TXPBTHRESH Tx Packet Buffer Threshold RW n=0..7 §8.2.3.9
func regTXPBTHRESH(n int) reg { return 0x04950 + reg(4*n) }
func regTDBAL(q int) reg      { return 0x06000 + reg(0x40*q) } // TDBAL  Tx Descriptor Base Low   RW  q=0..127  §8.2.3.9
func regTDBAH(q int) reg      { return 0x06004 + reg(0x40*q) } // TDBAH  Tx Descriptor Base High  RW  q=0..127  §8.2.3.9
func regTDLEN(q int) reg      { return 0x06008 + reg(0x40*q) } // TDLEN  Tx Descriptor Length     RW  q=0..127  §8.2.3.9
func regTDH(q int) reg        { return 0x06010 + reg(0x40*q) } // TDH    Tx Descriptor Head       RW  q=0..127  §8.2.3.9
func regTDT(q int) reg        { return 0x06018 + reg(0x40*q) } // TDT    Tx Descriptor Tail       RW  q=0..127  §8.2.3.9
func regTXDCTL(q int) reg     { return 0x06028 + reg(0x40*q) } // TXDCTL Tx Descriptor Control    RW  q=0..127  §8.2.3.9

// DCA_TXCTRL Tx DCA Control RW q=0..127 §8.2.3.11
func regDCATXCTRL(q int) reg { return 0x0600C + reg(0x40*q) }

const (
	dcatxStatus = 1 << 11 // relaxed ordering of write-backs, on after a reset

	dmatxctlTE = 1 << 0

	rttdcsArbDis = 1 << 6

	// TXDCTL: prefetch whenever fewer than 32 descriptors are on the chip and one more is in memory; write back at once
	// each descriptor that requests it.
	txdctlPTHRESH = 32 << 0
	txdctlHTHRESH = 1 << 8
	txdctlWTHRESH = 0 << 16
	txdctlEnable  = 1 << 25
)

// Statistics: cleared by being read (§8.2.3.23).
const (
	regCRCERRS reg = 0x04000 // CRCERRS CRC Error Count
	regILLERRC reg = 0x04004 // ILLERRC Illegal Byte Error Count
	regERRBC   reg = 0x04008 // ERRBC   Error Byte Count
	regMLFC    reg = 0x04034 // MLFC    MAC Local Fault Count
	regMRFC    reg = 0x04038 // MRFC    MAC Remote Fault Count
	regRLEC    reg = 0x04040 // RLEC    Receive Length Error Count
	regGPRC    reg = 0x04074 // GPRC    Good Packets Received Count
	regGPTC    reg = 0x04080 // GPTC    Good Packets Transmitted Count
	regGORCL   reg = 0x04088 // GORCL   Good Octets Received Count Low, with CRC
	regGORCH   reg = 0x0408C // GORCH   Good Octets Received Count High, 4 bits
	regGOTCL   reg = 0x04090 // GOTCL   Good Octets Transmitted Count Low, with CRC
	regGOTCH   reg = 0x04094 // GOTCH   Good Octets Transmitted Count High, 4 bits
	regRUC     reg = 0x040A4 // RUC     Receive Undersize Count
	regRFC     reg = 0x040A8 // RFC     Receive Fragment Count
	regROC     reg = 0x040AC // ROC     Receive Oversize Count
	regRJC     reg = 0x040B0 // RJC     Receive Jabber Count
)

func regRXMPC(n int) reg { return 0x03FA0 + reg(4*n) }    // RXMPC Rx Missed Packets Count          RC  n=0..7
func regQPRDC(q int) reg { return 0x01430 + reg(0x40*q) } // QPRDC Queue Packets Received Drop Count RC  q=0..15

// Timestamps of PTP (§7.9).
const (
	regRXMTRL     reg = 0x05120 // RXMTRL     Rx Message Type Low: UDP port 31:16      RW
	regTSYNCRXCTL reg = 0x05188 // TSYNCRXCTL Rx Time Sync Control                     RW
	regRXSTMPH    reg = 0x051A4 // RXSTMPH    Rx Timestamp High; reading releases both RO
	regRXSTMPL    reg = 0x051E8 // RXSTMPL    Rx Timestamp Low                         RO
	regTSYNCTXCTL reg = 0x08C00 // TSYNCTXCTL Tx Time Sync Control                     RW
	regTXSTMPL    reg = 0x08C04 // TXSTMPL    Tx Timestamp Low                         RO
	regTXSTMPH    reg = 0x08C08 // TXSTMPH    Tx Timestamp High; reading releases both RO
	regSYSTIML    reg = 0x08C0C // SYSTIML    System Time Low                          RW
	regSYSTIMH    reg = 0x08C10 // SYSTIMH    System Time High                         RW
	regTIMINCA    reg = 0x08C14 // TIMINCA    Increment Attributes                     RW

	tsyncValid   = 1 << 0 // RXSTMP or TXSTMP has a timestamp
	tsyncTypeLSB = 1      // TSYNCRXCTL, 3 bits
	tsyncEventV2 = 5      // all event messages of version 2
	tsyncEnable  = 1 << 4

	timincaPeriodLSB = 24 // 82599: clock periods for each increment, above INCVALUE
)
