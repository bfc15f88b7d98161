package ixgbesim

// entry describes one register or a row of equal ones.
type entry struct {
	base   reg
	n      int // registers in the row
	stride reg
	name   string
	kind   kind
	bits   uint32 // what a driver may write; others keep their reset value
	reset  uint32
}

type kind uint8

const (
	rw kind = iota
	ro      // a write is a violation
	rc      // a statistic: reading clears it
	sc      // written for its effect; the handler keeps what it reads
)

func (e *entry) index(r reg) int {
	if e.n == 1 {
		return 0
	}
	return int((r - e.base) / e.stride)
}

const all = 0xffffffff

// table lists every register that exists in this model. Bits and reset values are the datasheet's, §8.2.3; where a driver
// of Linux writes a bit that the datasheet calls reserved, the comment says so.
var table = []entry{
	{regCTRL, 1, 0, "CTRL", sc, ctrlGIODIS | ctrlLRST | ctrlRST, 0},
	{0x00004, 1, 0, "CTRL alias", sc, ctrlGIODIS | ctrlLRST | ctrlRST, 0},
	{regSTATUS, 1, 0, "STATUS", ro, 0, statusGIO},
	{regCTRLEXT, 1, 0, "CTRL_EXT", rw, 1<<14 | 1<<16 | 1<<17 | 1<<26 | 1<<28, 0},
	{regESDP, 1, 0, "ESDP", rw, 0x0003ffff, 0},
	{regI2CCTL, 1, 0, "I2CCTL", sc, 0x0f, 0x0f},
	{0x00048, 1, 0, "FRTIMER", ro, 0, 0},
	{0x0004c, 1, 0, "TCPTIMER", rw, 0xfff, 0},
	{regLEDCTL, 1, 0, "LEDCTL", rw, 0xcfcfcfef, 0x00010204},
	{regEEC, 1, 0, "EEC", sc, eecREQ | eecBits | eecDO | 0x30, 0x10 | eecPRES | eecADDR | eecSIZE},
	{regEERD, 1, 0, "EERD", sc, 0xffff, 0},
	{0x10018, 1, 0, "EEWR", sc, all, 0},
	{0x1001c, 1, 0, "FLA", rw, 0, 0},
	{0x10110, 1, 0, "EEMNGCTL", rw, 0, 1<<18 | 1<<31}, // configuration of port 0 done
	{regSWSM, 1, 0, "SWSM", sc, 3, 0},
	{regFWSM, 1, 0, "FWSM", rw, 1, 1 << 15}, // firmware valid, no manageability mode
	{0x10150, 1, 0, "FACTPS", rw, 0, 0},
	{regSWFW, 1, 0, "SW_FW_SYNC", sc, all, 0},
	{0x11000, 1, 0, "GCR", rw, all, 0},
	{0x11050, 1, 0, "GCR_EXT", rw, 1<<30 | 1<<4 | 3 | 1<<31, 0},
	{0x11070, 1, 0, "DCA_ID", ro, 0, 0},
	{0x11074, 1, 0, "DCA_CTRL", rw, 0x1f, 1},
	{0x110b0, 1, 0, "PICAUSE", rw, all, 0},
	{0x110b8, 1, 0, "PIENA", rw, all, 0},

	{regEICR, 1, 0, "EICR", sc, all, 0},
	{regEICS, 1, 0, "EICS", sc, all, 0},
	{regEIMS, 1, 0, "EIMS", sc, all, 0},
	{regEIMC, 1, 0, "EIMC", sc, all, 0},
	{regEIAC, 1, 0, "EIAC", rw, all, 0},
	{regEIAM, 1, 0, "EIAM", rw, all, 0},
	{regEICSEX, 2, 4, "EICS_EX", sc, all, 0},
	{regEIMSEX, 2, 4, "EIMS_EX", sc, all, 0},
	{regEIMCEX, 2, 4, "EIMC_EX", sc, all, 0},
	{regEIAMEX, 2, 4, "EIAM_EX", rw, all, 0},
	{regEITR, 24, 4, "EITR", rw, 0x80ffffff, 0},      // Linux writes 1950 to it, below the granularity of 2 us
	{regEITRHigh, 105, 4, "EITR", rw, 0x80ffffff, 0}, // 24 to 128
	{0x00894, 1, 0, "EITRSEL", rw, all, 0},
	{regIVAR, 64, 4, "IVAR", rw, 0xbfbfbfbf, 0},
	{regIVARMISC, 1, 0, "IVAR_MISC", rw, 0xffff, 0},
	{regGPIE, 1, 0, "GPIE", rw, 0xffffc7ff, 0},
	{0x11068, 1, 0, "PBACL", sc, all, 0},

	{regFCTRL, 1, 0, "FCTRL", rw, 1<<1 | fctrlMPE | fctrlUPE | fctrlBAM | 1<<12 | 1<<13, 0}, // Linux keeps the 82598's PMCF and DPF
	{regVLNCTRL, 1, 0, "VLNCTRL", rw, 0x7000ffff | 1<<31, 0x8100},
	{regMCSTCTRL, 1, 0, "MCSTCTRL", rw, 7, 0},
	{0x05480, 16, 4, "PSRTYPE", rw, 0xe0001332, 0},
	{0x0ea00, 64, 4, "PSRTYPE", rw, 0xe0001332, 0},
	{regRXCSUM, 1, 0, "RXCSUM", rw, 3 << 12, 0},
	{regRFCTL, 1, 0, "RFCTL", rw, 0x000347ff, 0},
	{regMTA, 128, 4, "MTA", rw, all, 0},
	{regRAL, 128, 8, "RAL", rw, all, 0},
	{regRAH, 128, 8, "RAH", rw, rahAV | 0xffff, 0},
	{0x0a600, 256, 4, "MPSAR", rw, all, 0},
	{regVFTA, 128, 4, "VFTA", rw, all, 0},
	{regMRQC, 1, 0, "MRQC", rw, 0x01ff000f, 0},
	{0x0ec70, 1, 0, "RQTC", rw, 0x77777777, 0x44444444},
	{regRSSRK, 10, 4, "RSSRK", rw, all, 0},
	{regRETA, 32, 4, "RETA", rw, 0x0f0f0f0f, 0},
	{regETQF, 8, 4, "ETQF", rw, all, 0},
	{regETQS, 8, 4, "ETQS", rw, all, 0},
	{0x0e000, 128, 4, "SAQF", rw, all, 0},
	{0x0e200, 128, 4, "DAQF", rw, all, 0},
	{0x0e400, 128, 4, "SDPQF", rw, all, 0},
	{0x0e600, 128, 4, "FTQF", rw, 0x7e003f1f, 0}, // QUEUE_ENABLE, bit 31, is not there: no five-tuple filters
	{0x0e800, 128, 4, "L34TIMIR", rw, all, 0},
	{0x0ec30, 1, 0, "SYNQF", rw, 0xfe, 0},
	{0x0ec90, 1, 0, "LLITHRESH", rw, all, 0},
	{0x0507c, 1, 0, "VXLANCTRL", rw, 0, 0},

	{regRDBAL, 64, 0x40, "RDBAL", rw, 0xffffff80, 0},
	{regRDBAH, 64, 0x40, "RDBAH", rw, all, 0},
	{regRDLEN, 64, 0x40, "RDLEN", rw, 0x000fff80, 0},
	{regDCARX, 64, 0x40, "DCA_RXCTRL", rw, 0xff00b2e0, 0xb200},
	{regRDH, 64, 0x40, "RDH", sc, 0xffff, 0},
	{regSRRCTL, 64, 0x40, "SRRCTL", rw, 0x1fc03f1f, 0x0402},
	{regRDT, 64, 0x40, "RDT", sc, 0xffff, 0},
	{regRXDCTL, 64, 0x40, "RXDCTL", sc, rxdctlENABLE | rxdctlVME | 1<<26, 0}, // Linux writes bit 26 on the way down
	{regRSCCTL, 64, 0x40, "RSCCTL", rw, 0x0d, 0},
	{0x0d000, 64, 0x40, "RDBAL+64", rw, 0xffffff80, 0},
	{0x0d004, 64, 0x40, "RDBAH+64", rw, all, 0},
	{0x0d008, 64, 0x40, "RDLEN+64", rw, 0x000fff80, 0},
	{0x0d00c, 64, 0x40, "DCA_RXCTRL+64", rw, 0xff00b2e0, 0xb200},
	{0x0d010, 64, 0x40, "RDH+64", sc, 0xffff, 0},
	{0x0d014, 64, 0x40, "SRRCTL+64", rw, 0x1fc03f1f, 0x0402},
	{0x0d018, 64, 0x40, "RDT+64", sc, 0xffff, 0},
	{0x0d028, 64, 0x40, "RXDCTL+64", sc, rxdctlENABLE | rxdctlVME | 1<<26, 0},
	{0x0d02c, 64, 0x40, "RSCCTL+64", rw, 0x0d, 0},
	{regRDRXCTL, 1, 0, "RDRXCTL", rw, 0x063e0002, 8 << 17},
	{0x02f04, 1, 0, "QDE", rw, 0x00017f03, 0},
	{0x02f20, 1, 0, "RDDCC", rw, 0, 0},
	{0x03028, 1, 0, "RSCDBU", rw, 0xff, 0x20},
	{0x03190, 1, 0, "RXMEMWRAP", ro, 0, 0x88888888},
	{regRXPBSIZE, 8, 4, "RXPBSIZE", rw, 0x000ffc00, 0},
	{regRXCTRL, 1, 0, "RXCTRL", sc, rxctrlRXEN, 0},
	{regRQSMR, 32, 4, "RQSMR", rw, 0x0f0f0f0f, 0},

	{0x08100, 1, 0, "DTXMXSZRQ", rw, 0xfff, 0x10},
	{regDMATXCTL, 1, 0, "DMATXCTL", sc, dmatxctlTE | 1<<3 | 0xffff0000, 0x81000000},
	{regDTXFLGL, 1, 0, "DTXTCPFLGL", rw, 0x0fff0fff, 0x0ff60ff6},
	{regDTXFLGH, 1, 0, "DTXTCPFLGH", rw, 0x0fff, 0x0f7f},
	{regTDBAL, 128, 0x40, "TDBAL", rw, 0xffffff80, 0},
	{regTDBAH, 128, 0x40, "TDBAH", rw, all, 0},
	{regTDLEN, 128, 0x40, "TDLEN", rw, 0x000fff80, 0},
	{regDCATX, 128, 0x40, "DCA_TXCTRL", rw, 0xff002a20, 0x2a00},
	{regTDH, 128, 0x40, "TDH", sc, 0xffff, 0},
	{regTDT, 128, 0x40, "TDT", sc, 0xffff, 0},
	{regTXDCTL, 128, 0x40, "TXDCTL", sc, txdctlENABLE | txdctlSWFLSH | 0x7f7f7f, 0},
	{regTDWBAL, 128, 0x40, "TDWBAL", rw, 0xfffffffd, 0},
	{regTDWBAH, 128, 0x40, "TDWBAH", rw, all, 0},
	{0x0cc00, 8, 4, "TXPBSIZE", rw, 0x000ffc00, 0},
	{regMTQC, 1, 0, "MTQC", sc, 0x0f, 0},
	{0x04950, 8, 4, "TXPBTHRESH", rw, 0x3ff, 0},
	{0x082b0, 3, 4, "TIC_DW2", rw, all, 0},
	{0x082cc, 1, 0, "TXDESCIC", rw, all, 0},
	{regTQSM, 32, 4, "TQSM", rw, 0x0f0f0f0f, 0},

	{regRTTDCS, 1, 0, "RTTDCS", rw, 0x80c0005f, 3 << 22},
	{0x04904, 1, 0, "RTTDQSEL", rw, 0x7f, 0},
	{0x04908, 1, 0, "RTTDT1C", rw, 0x3fff, 0},
	{0x04980, 1, 0, "RTTBCNRM", rw, all, 0},
	{0x04984, 1, 0, "RTTBCNRC", rw, all, 0},
	{0x03020, 1, 0, "RTRUP2TC", rw, 0x00ffffff, 0},
	{0x0c800, 1, 0, "RTTUP2TC", rw, 0x00ffffff, 0},
	{0x02430, 1, 0, "RTRPCS", rw, 0x46, 0},
	{0x0cd00, 1, 0, "RTTPCS", rw, 0xffc00120, 0},

	{regSECTXCTRL, 1, 0, "SECTXCTRL", rw, 7, 1},
	{regSECTXSTAT, 1, 0, "SECTXSTAT", ro, 0, secReady | secOff},
	{0x08808, 1, 0, "SECTXBUFFAF", rw, 0x3ff, 0x250},
	{0x08810, 1, 0, "SECTXMINIFG", rw, 0x1f0f, 0x1001},
	{regSECRXCTRL, 1, 0, "SECRXCTRL", sc, 3, 1},
	{regSECRXSTAT, 1, 0, "SECRXSTAT", ro, 0, secOff},

	{regFCTTV, 4, 4, "FCTTV", rw, all, 0},
	{regFCRTL, 8, 4, "FCRTL", rw, 0x8007ffe0, 0},
	{regFCRTH, 8, 4, "FCRTH", rw, 0x8007ffe0, 0},
	{0x032a0, 1, 0, "FCRTV", rw, 0xffff, 0},
	{0x0ce00, 1, 0, "TFCS", ro, 0, 0},
	{regFCCFG, 1, 0, "FCCFG", rw, 3 << 3, 0},
	{regMFLCN, 1, 0, "MFLCN", rw, 0x0f, 0},

	{0x04200, 1, 0, "PCS1GCFIG", rw, all, 0},
	{0x04208, 1, 0, "PCS1GLCTL", rw, all, 0x00040000},
	{0x0420c, 1, 0, "PCS1GLSTA", ro, 0, 0},
	{0x04218, 1, 0, "PCS1GANA", rw, all, 0},
	{0x0421c, 1, 0, "PCS1GANLP", ro, 0, 0},
	{regHLREG0, 1, 0, "HLREG0", rw, 0x00f38407 | 1<<27, 1<<27 | 1<<16 | 1<<10 | 1<<3 | 3},
	{regMAXFRS, 1, 0, "MAXFRS", rw, 0xffff0000, 1518 << 16},
	{regMSCA, 1, 0, "MSCA", sc, 0x7fffffff, 0},
	{regMSRWD, 1, 0, "MSRWD", sc, 0xffff, 0},
	{regAUTOC, 1, 0, "AUTOC", sc, all, 0},
	{regLINKS, 1, 0, "LINKS", ro, 0, 0},
	{regLINKS2, 1, 0, "LINKS2", ro, 0, 0},
	{regAUTOC2, 1, 0, "AUTOC2", rw, 0xffff0000, 0},
	{regANLP1, 1, 0, "ANLP1", ro, 0, 0},
	{0x042d0, 1, 0, "MMNGC", rw, 0, 0},
	{0x04330, 1, 0, "MACC", rw, 0x00070003, 0},
	{0x14f00, 1, 0, "CORECTL", sc, 0x1ffff, 0},
	{0x14f10, 1, 0, "SMADARCTL", rw, all, 0},
	{0x15f00, 1, 0, "HICR", rw, 0, 0},    // no firmware mailbox
	{0x15f0c, 1, 0, "FWSTS", sc, all, 0}, // Linux asks it whether the firmware was reset, and clears it

	{0x05800, 1, 0, "WUC", rw, all, 0},
	{0x05808, 1, 0, "WUFC", rw, all, 0},
	{0x05810, 1, 0, "WUS", sc, all, 0},
	{0x05820, 1, 0, "MANC", ro, 0, 0},
	{0x05824, 1, 0, "MFVAL", ro, 0, 0},
	{0x05860, 1, 0, "MANC2H", ro, 0, 0},

	// Virtualisation: registers that a driver clears on its way up, and must leave cleared.
	{0x051b0, 1, 0, "PFVTCTL", rw, 0, 0},
	{0x0581c, 1, 0, "VMD_CTL", rw, 0, 0},
	{0x04b00, 64, 4, "PFMAILBOX", rw, 0x1f, 0},
	{0x13000, 1024, 4, "PFMBMEM", rw, all, 0},
	{0x00600, 1, 0, "PFVFLRE", ro, 0, 0},
	{0x001c0, 1, 0, "PFVFLRE", ro, 0, 0},
	{0x00700, 2, 4, "PFVFLREC", sc, all, 0},
	{0x00710, 4, 4, "PFMBICR", sc, all, 0},
	{0x00720, 2, 4, "PFMBIMR", rw, all, 0},
	{0x051e0, 2, 4, "PFVFRE", rw, all, 0},
	{0x08110, 2, 4, "PFVFTE", rw, all, 0},
	{0x08200, 8, 4, "PFVFSPOOF", rw, 0, 0},
	{0x08220, 1, 0, "PFDTXGSWC", rw, 0, 0},
	{0x08790, 2, 4, "PFVMECM", rw, all, 0},
	{0x08000, 64, 4, "PFVMVIR", rw, 0, 0},
	{0x0f000, 64, 4, "PFVML2FLT", rw, 0x1fc00000, 0},
	{0x0f100, 64, 4, "PFVLVF", rw, 0x80000fff, 0},
	{0x0f200, 128, 4, "PFVLVFB", rw, all, 0},
	{0x0f400, 128, 4, "PFUTA", rw, all, 0},
	{0x0f600, 4, 4, "PFMRCTL", rw, 0, 0},
	{0x0f610, 8, 4, "PFMRVLAN", rw, all, 0},
	{0x0f630, 8, 4, "PFMRVM", rw, all, 0},

	{regFDIRCTRL, 1, 0, "FDIRCTRL", sc, 0xff1fffb3, 0},
	{0x0ee68, 1, 0, "FDIRHKEY", rw, all, 0x80000001},
	{0x0ee6c, 1, 0, "FDIRSKEY", rw, all, 0x80800101},
	{0x0ee3c, 1, 0, "FDIRDIP4M", rw, all, 0},
	{0x0ee40, 1, 0, "FDIRSIP4M", rw, all, 0},
	{0x0ee44, 1, 0, "FDIRTCPM", rw, all, 0},
	{0x0ee48, 1, 0, "FDIRUDPM", rw, all, 0},
	{0x0ee70, 1, 0, "FDIRM", rw, 0x3f, 0},
	{0x0ee74, 1, 0, "FDIRIP6M", rw, all, 0},
	{0x0ee78, 1, 0, "FDIRSCTPM", rw, all, 0}, // Linux programs it on the 82599 too
	{0x0ee0c, 3, 4, "FDIRSIPv6", rw, all, 0},
	{0x0ee18, 1, 0, "FDIRIPSA", rw, all, 0},
	{0x0ee1c, 1, 0, "FDIRIPDA", rw, all, 0},
	{0x0ee20, 1, 0, "FDIRPORT", rw, all, 0},
	{0x0ee24, 1, 0, "FDIRVLAN", rw, all, 0},
	{0x0ee28, 1, 0, "FDIRHASH", rw, all, 0},
	{regFDIRCMD, 1, 0, "FDIRCMD", sc, all, 0},
	{0x0ee38, 1, 0, "FDIRFREE", ro, 0, 0x8000},
	{0x0ee4c, 1, 0, "FDIRLEN", rc, 0, 0},
	{0x0ee50, 1, 0, "FDIRUSTAT", rc, 0, 0},
	{0x0ee54, 1, 0, "FDIRFSTAT", rc, 0, 0},
	{0x0ee58, 1, 0, "FDIRMATCH", rc, 0, 0},
	{regFDIRMISS, 1, 0, "FDIRMISS", rc, 0, 0},

	{0x02410, 1, 0, "FCPTRL", rw, 0, 0}, // FCoE: a driver may clear it
	{0x02414, 1, 0, "FCPTRH", rw, 0, 0},
	{0x02418, 1, 0, "FCBUFF", rw, 0, 0},
	{0x02420, 1, 0, "FCDMARW", rw, 0, 0},
	{0x05100, 1, 0, "FCRXCTRL", rw, 0, 0x100},
	{0x0ed00, 1, 0, "FCRECTL", rw, 0, 0},

	{0x05188, 1, 0, "TSYNCRXCTL", rw, 0x0e, 0}, // bit 4, the enable, is not there: no time stamps
	{0x08c00, 1, 0, "TSYNCTXCTL", rw, 0, 0},
	{0x051e8, 1, 0, "RXSTMPL", ro, 0, 0},
	{0x051a4, 1, 0, "RXSTMPH", ro, 0, 0},
	{0x05120, 1, 0, "RXMTRL", rw, all, 0x319},
	{0x08c04, 1, 0, "TXSTMPL", ro, 0, 0},
	{0x08c08, 1, 0, "TXSTMPH", ro, 0, 0},
	{regSYSTIML, 1, 0, "SYSTIML", sc, all, 0},
	{regSYSTIMH, 1, 0, "SYSTIMH", sc, all, 0},
	{0x08c14, 1, 0, "TIMINCA", rw, all, 0},
	{0x08c18, 2, 4, "TIMADJ", rw, all, 0},
	{0x08c20, 1, 0, "TSAUXC", rw, all, 0},

	{regCRCERRS, 1, 0, "CRCERRS", rc, 0, 0},
	{0x04004, 1, 0, "ILLERRC", rc, 0, 0},
	{0x04008, 1, 0, "ERRBC", rc, 0, 0},
	{0x04010, 1, 0, "MSPDC", rc, 0, 0},
	{regMPC, 8, 4, "MPC", rc, 0, 0},
	{0x03fc0, 8, 4, "RNBC", rc, 0, 0}, // the 82598's; Linux clears it
	{0x04034, 1, 0, "MLFC", rc, 0, 0},
	{0x04038, 1, 0, "MRFC", rc, 0, 0},
	{regRLEC, 1, 0, "RLEC", rc, 0, 0},
	{regLXONTX, 1, 0, "LXONTXC", rc, 0, 0},
	{regLXOFFTX, 1, 0, "LXOFFTXC", rc, 0, 0},
	{regLXONRX, 1, 0, "LXONRXCNT", rc, 0, 0},
	{regLXOFFRX, 1, 0, "LXOFFRXCNT", rc, 0, 0},
	{0x03f00, 8, 4, "PXONTXC", rc, 0, 0},
	{0x03f20, 8, 4, "PXOFFTXC", rc, 0, 0},
	{0x04140, 8, 4, "PXONRXCNT", rc, 0, 0},
	{0x04160, 8, 4, "PXOFFRXCNT", rc, 0, 0},
	{0x03240, 8, 4, "PXON2OFFCNT", rc, 0, 0},
	{regPRC, 6, 4, "PRC64 to PRC1522", rc, 0, 0},
	{regGPRC, 1, 0, "GPRC", rc, 0, 0},
	{regBPRC, 1, 0, "BPRC", rc, 0, 0},
	{regMPRC, 1, 0, "MPRC", rc, 0, 0},
	{regGPTC, 1, 0, "GPTC", rc, 0, 0},
	{regGORCL, 1, 0, "GORCL", rc, 0, 0},
	{regGORCL + 4, 1, 0, "GORCH", rc, 0, 0},
	{regGOTCL, 1, 0, "GOTCL", rc, 0, 0},
	{regGOTCL + 4, 1, 0, "GOTCH", rc, 0, 0},
	{regRUC, 1, 0, "RUC", rc, 0, 0},
	{0x040a8, 1, 0, "RFC", rc, 0, 0},
	{regROC, 1, 0, "ROC", rc, 0, 0},
	{0x040b0, 1, 0, "RJC", rc, 0, 0},
	{0x040b4, 1, 0, "MNGPRC", rc, 0, 0},
	{0x040b8, 1, 0, "MNGPDC", rc, 0, 0},
	{0x0cf90, 1, 0, "MNGPTC", rc, 0, 0},
	{regTORL, 1, 0, "TORL", rc, 0, 0},
	{regTORL + 4, 1, 0, "TORH", rc, 0, 0},
	{regTPR, 1, 0, "TPR", rc, 0, 0},
	{regTPT, 1, 0, "TPT", rc, 0, 0},
	{regPTC, 6, 4, "PTC64 to PTC1522", rc, 0, 0},
	{regMPTC, 1, 0, "MPTC", rc, 0, 0},
	{regBPTC, 1, 0, "BPTC", rc, 0, 0},
	{regXEC, 1, 0, "XEC", rc, 0, 0},
	{regQPRC, 16, 0x40, "QPRC", rc, 0, 0},
	{regQBRC, 16, 0x40, "QBRC_L", rc, 0, 0},
	{regQBRC + 4, 16, 0x40, "QBRC_H", rc, 0, 0},
	{regQPRDC, 16, 0x40, "QPRDC", rc, 0, 0},
	{regQPTC, 16, 0x40, "QPTC", rc, 0, 0},
	{regQBTC, 16, 8, "QBTC_L", rc, 0, 0},
	{regQBTC + 4, 16, 8, "QBTC_H", rc, 0, 0},
	{0x08780, 1, 0, "SSVPC", rc, 0, 0},
	{0x05118, 1, 0, "FCCRC", rc, 0, 0},
	{0x0241c, 1, 0, "FCOERPDC", rc, 0, 0},
	{0x02424, 1, 0, "FCLAST", rc, 0, 0},
	{0x02428, 1, 0, "FCOEPRC", rc, 0, 0},
	{0x0242c, 1, 0, "FCOEDWRC", rc, 0, 0},
	{0x08784, 1, 0, "FCOEPTC", rc, 0, 0},
	{0x08788, 1, 0, "FCOEDWTC", rc, 0, 0},
	{0x041c0, 1, 0, "B2OSPC", rc, 0, 0},
	{0x041c4, 1, 0, "O2BGPTC", rc, 0, 0},
	{0x02f90, 1, 0, "B2OGPRC", rc, 0, 0},
	{0x087b0, 1, 0, "O2BSPC", rc, 0, 0},
	{0x041b0, 1, 0, "RXNFGPC", rc, 0, 0},
	{0x041b4, 2, 4, "RXNFGBC", rc, 0, 0},
	{0x02f50, 12, 4, "RXDGPC to RXDLPBKGBCH", rc, 0, 0},
	{0x087a0, 1, 0, "TXDGPC", rc, 0, 0},
	{0x087a4, 2, 4, "TXDGBC", rc, 0, 0},
}

// alias maps a second address of a register, kept for the 82598's drivers, to its own.
func alias(r reg) reg {
	switch {
	case r >= 0x02100 && r < 0x02140: // SRRCTL 0 to 15
		return rxReg(regSRRCTL, int(r-0x02100)/4)
	case r >= 0x02200 && r < 0x02240: // DCA_RXCTRL 0 to 15
		return rxReg(regDCARX, int(r-0x02200)/4)
	case r >= 0x05400 && r < 0x05480: // RAL and RAH 0 to 15
		return r - 0x05400 + regRAL
	case r == regMRQCOld:
		return regMRQC
	case r >= regRETAOld && r < regRETAOld+32*4:
		return r - regRETAOld + regRETA
	case r >= regRSSRKOld && r < regRSSRKOld+10*4:
		return r - regRSSRKOld + regRSSRK
	}
	return r
}

// byOffset finds the table's entry by register number, plus one.
var byOffset = func() (t [regsEnd / 4]uint16) {
	for i := range table {
		e := &table[i]
		for k := range e.n {
			r := e.base + reg(k)*e.stride
			if t[r/4] != 0 {
				panic("ixgbesim: two registers at " + e.name)
			}
			t[r/4] = uint16(i + 1)
		}
	}
	return t
}()

func lookup(r reg) *entry {
	if r >= regsEnd || r%4 != 0 || byOffset[r/4] == 0 {
		return nil
	}
	return &table[byOffset[r/4]-1]
}
