package mlx5sim

// Commands that initialize and tear down the function.
func hcaCommands() map[uint16]*command {
	hcaID := lay(16, "00.31:16 opcode 04.15:0 op_mod 08.31 embedded_cpu_function 08.28 function_id_type 08.15:0 function_id")
	return map[uint16]*command{
		0x100: {name: "QUERY_HCA_CAP", in: lay(16, head+"08.31 other_function 08.15:0 function_id"),
			out: plainOut, from: hcaEnabled, run: (*Model).queryCap},
		0x101: {name: "QUERY_ADAPTER", in: plainIn, out: lay(272,
			"28.23:0 ieee_vendor_id 2c.15:0 vsd_vendor_id 100*4 psid"),
			from: hcaEnabled, run: (*Model).queryAdapter},
		0x102: {name: "INIT_HCA", in: lay(16, "00.31:16 opcode 04.15:0 op_mod 0c.29:16 sw_vhca_id"), tail: true,
			out:  plainOut,
			from: hcaEnabled, run: (*Model).initHCA},
		0x103: {name: "TEARDOWN_HCA", in: lay(16, "00.31:16 opcode 04.15:0 op_mod 08.15:0 profile"),
			out:  lay(16, "0c.0 state"),
			from: hcaReady, run: (*Model).teardownHCA},
		0x104: {name: "ENABLE_HCA", in: hcaID, out: plainOut, run: (*Model).enableHCA},
		0x105: {name: "DISABLE_HCA", in: hcaID, out: plainOut, from: hcaEnabled, run: (*Model).disableHCA},
		0x107: {name: "QUERY_PAGES",
			in:  lay(16, "00.31:16 opcode 04.15:0 op_mod 08.31 embedded_cpu_function 08.15:0 function_id"),
			out: lay(16, "08.31 embedded_cpu_function 08.15:0 function_id 0c.31:0 num_pages"), from: hcaEnabled,
			run: (*Model).queryPages},
		0x108: {name: "MANAGE_PAGES",
			in:   lay(16, "00.31:16 opcode 04.15:0 op_mod 08.31 embedded_cpu_function 08.15:0 function_id 0c.31:0 input_num_entries"),
			tail: true, out: lay(16, "08.31:0 output_num_entries"), from: hcaEnabled, run: (*Model).managePages},
		0x109: {name: "SET_HCA_CAP",
			in: lay(16, "00.31:16 opcode 04.15:0 op_mod 08.31 other_function 08.15:0 function_id"), tail: true,
			out: plainOut, from: hcaEnabled, run: (*Model).setCap},
		0x10a: {name: "QUERY_ISSI", in: plainIn, out: lay(112, "08.15:0 current_issi 6c.31:0 supported_issi_dw0"), from: hcaEnabled, run: (*Model).queryISSI},
		0x10b: {name: "SET_ISSI", in: lay(16, "00.31:16 opcode 04.15:0 op_mod 08.15:0 current_issi"), out: plainOut, from: hcaEnabled, run: (*Model).setISSI},
		0x10d: {name: "SET_DRIVER_VERSION", in: lay(80, "00.31:16 opcode 04.15:0 op_mod 10*16 driver_version"), out: plainOut, from: hcaReady, run: (*Model).accept},
		0x80d: {name: "NOP", in: plainIn, out: plainOut, run: (*Model).accept},
		0x805: {name: "ACCESS_REG", in: lay(16, "00.31:16 opcode 04.15:0 op_mod 08.15:0 register_id 0c.31:0 argument"),
			tail: true,
			out:  lay(16, ""), from: hcaEnabled, run: (*Model).accessReg},
	}
}

func (m *Model) accept(*call) *refusal { return nil }

func (m *Model) enableHCA(c *call) *refusal {
	if m.booting != 0 {
		return refuse(stBadSysState, "the firmware is initializing")
	}
	if m.hca != hcaDisabled {
		return refuse(stBadSysState, "the function is %v already", m.hca)
	}
	m.hca, m.lost = hcaEnabled, false
	m.caps = m.newCaps()
	boot := bootPages
	if m.opt.HostPages {
		boot = 0
	}
	m.pages.want(boot)
	return nil
}

func (m *Model) disableHCA(*call) *refusal {
	if m.hca == hcaReady {
		return refuse(stBadSysState, "the function is initialized: TEARDOWN_HCA comes first")
	}
	if n := len(m.pages.owned); n > 0 {
		m.host.Warnf("DISABLE_HCA (105h): %d pages are still the firmware's: they have to be taken back first", n)
	}
	m.hca, m.issi = hcaDisabled, 0
	m.pages = pagePool{}
	return nil
}

func (m *Model) initHCA(c *call) *refusal {
	switch {
	case len(c.in.B) > 32:
		return refuse(stInLen, "input is %d bytes, expected 16 or 32", len(c.in.B))
	case m.hca == hcaReady:
		return refuse(stBadSysState, "the function is initialized already")
	case m.pages.missing > 0:
		return refuse(stBadSysState, "%d pages that QUERY_PAGES asked for were not given", m.pages.missing)
	}
	m.hca = hcaReady
	return nil
}

func (m *Model) teardownHCA(c *call) *refusal {
	if p := c.in.I("profile"); p > 2 {
		return refuse(stBadParam, "profile is %d, expected 0 (graceful), 1 (force) or 2 (prepare fast)", p)
	}
	if c.in.U("profile") == 0 {
		if left := joined(m.obj.left(), m.memic.left()); left != "" {
			m.host.Warnf("TEARDOWN_HCA (103h): objects were not destroyed: %s", left)
		}
	}
	m.obj, m.flow, m.vport, m.roce = newObjects(m.uars, &m.uid), newSteering(), m.newVport(), roce{}
	m.pages.release()
	m.hca = hcaEnabled
	return nil
}

func (m *Model) queryISSI(c *call) *refusal {
	c.out.Set("current_issi", uint64(m.issi))
	c.out.Set("supported_issi_dw0", 1<<1)
	return nil
}

func (m *Model) setISSI(c *call) *refusal {
	if v := c.in.U32("current_issi"); v != 1 {
		return refuse(stBadParam, "current_issi is %d, supported is 1", v)
	}
	m.issi = 1
	return nil
}

func (m *Model) queryAdapter(c *call) *refusal {
	c.out.Set("ieee_vendor_id", 0x2c9)
	c.out.Set("vsd_vendor_id", 0x15b3)
	copy(c.out.Bytes("psid"), m.prof.psid)
	return nil
}
