package ixgbe

// evidence reads what a probe file holds beside what Open needs: how the EEPROM set the port up, and the X540's PHY. Who follows the
// driver sees the registers. None of them changes by being read.
func (d *Device) evidence() {
	for _, r := range []reg{regCTRL, regSTATUS, regCTRLEXT, regESDP, regEEC, regSWFWSYNC, regHLREG0, regMFLCN, regLINKS, regMMNGC, regFCCFG,
		regRDRXCTL, regRAL(0), regRAH(0)} {
		d.read(r)
	}
	if d.family != x540 {
		d.read(regAUTOC)
		d.read(regAUTOC2)
		return
	}
	own := d.phySync()
	if d.take(own) != nil {
		return
	}
	defer d.give(own)
	if d.findPHY() != nil {
		return
	}
	for _, r := range []phyReg{phyID, phyAN, phyAdvert, phyAdvert10, phyAdvert1, phyPower} {
		d.readPHY(r)
	}
}
