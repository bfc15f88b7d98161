package ixgbe

// evidence reads what a probe file contains in addition to what Open needs: the EEPROM's port configuration, and the
// X540's PHY. The observer sees the registers. Reading changes none of them.
func (d *Device) evidence() {
	for _, r := range []reg{regCTRL, regSTATUS, regCTRLEXT, regESDP, regEEC, regSWFWSYNC, regHLREG0, regMFLCN, regLINKS,
		regMMNGC, regFCCFG,
		regRDRXCTL, regRAL(0), regRAH(0)} {
		d.read(r)
	}
	if d.family != x540 {
		d.read(regAUTOC)
		d.read(regAUTOC2)
		return
	}
	own := d.phySync()
	if d.acquireSync(own) != nil {
		return
	}
	defer d.releaseSync(own)
	if d.findPHY() != nil {
		return
	}
	for _, r := range []phyReg{phyID, phyAN, phyAdvert, phyAdvert10, phyAdvert1, phyPower} {
		d.readPHY(r)
	}
}
