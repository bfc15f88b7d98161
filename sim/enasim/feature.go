package enasim

import (
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/sim/amazon"
)

// Stateless offloads, ena_admin_feature_offload_desc: everything except for segmentation; or what public logs of EC2
// show, which is the IPv4 checksum on transmit and nothing on receive.
func (m *Model) txOffloads() uint32 {
	if m.opt.NoRxChecks {
		return 1 << 1
	}
	return 1<<1 | 1<<3 // L4 checksum from a partial sum, IPv4 and IPv6
}

func (m *Model) rxOffloads() uint32 {
	if m.opt.NoRxChecks {
		return 0
	}
	return 1<<0 | 1<<1 | 1<<2 | 1<<rxHash // IPv4 header, L4 of IPv4 and IPv6, hash
}

const rxHash = 3 // bit of rxOffloads

// defaultKey is the Toeplitz key after a reset. A driver may read it and set it again. It is the key of Microsoft's
// test vectors.
var defaultKey = [keyWords * 4]byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
	0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01,
	0xfa,
}

// Event groups that the device reports, as bits of ena_admin_aenq_group.
const eventGroups = 1<<amazon.GroupLink | 1<<amazon.GroupFatal | 1<<amazon.GroupWarning | 1<<amazon.GroupNotification |
	1<<amazon.GroupKeepAlive

// features is the state that SET_FEATURE sets.
type features struct {
	mtu       uint32
	rxEnabled uint32

	// bytes per entry, descriptors before the header, descriptors in each following entry
	llqSize, llqBefore, llqPerEntry int

	hash     uint32 // selected function, as a bit
	hashInit uint32
	key      [keyWords * 4]byte
	fields   [hashProtos]uint16
	table    []uint16 // receive SQ of each entry; nil until it is set

	hostPage    uint64
	driverMajor uint8 // from the host information
	rxOffset    bool  // the driver accepts frames that start at an offset
}

func (m *Model) offered() uint32 {
	f := uint32(featAll)
	if m.opt.NoLLQ {
		f &^= 1 << featLLQ
	}
	if m.opt.BasicQueues {
		f &^= 1 << featMaxExt
	}
	return f &^ m.opt.Unsupported
}

// hostDriver is the offset of the driver's version in ena_admin_host_info; the lowest byte is the major version. Some
// firmware creates completion queues for one major version only.
const (
	hostDriver  = 172
	driverMajor = 2
)

// control returns the address of a command's control buffer, which must have at least n bytes. The public drivers set
// "indirect" for a buffer that they point to directly.
func (m *Model) control(c *amazon.Message, what string, n int) (uint64, error) {
	a, err := m.address(c, what, 8)
	if err == nil && c.Opcode() != opGetStats && c[3]&4 == 0 {
		m.Host.Warnf("%s: flags %#02x with a control buffer: ctrl_data_indirect is what devices are known to take",
			what, c[3])
	}
	if err == nil && le.Uint32(c[4:]) > uint32(n) && (what == "GET_FEATURE 10" || what == "SET_FEATURE 10") {
		m.Host.Warnf("%s: control buffer of %d bytes, the structure has %d", what, le.Uint32(c[4:]), n)
	}
	if err == nil && (a == 0 || le.Uint32(c[4:]) < uint32(n)) {
		err = fmt.Errorf("%s: control buffer of %d bytes at %#x, %d are expected", what, le.Uint32(c[4:]), a, n)
	}
	return a, err
}

// checkSelect warns of a command that is not about the current value, which is all that the model has.
func (m *Model) checkSelect(c *amazon.Message, what string) {
	if s := c[16] & 3; s > selectCurrent {
		m.Host.Warnf("%s: select %d is accepted, and the value is the current one in this model", what, s)
	}
}

const selectCurrent = 1 // ena_admin_get_set_feature_common_desc; 0 means the same, 3 the default value

// getFeature executes ena_admin_get_feat_cmd.
func (m *Model) getFeature(c *amazon.Message, r []byte) (byte, error) {
	id := c[17]
	what := fmt.Sprintf("GET_FEATURE %d", id)
	m.checkSelect(c, what)
	if id >= 32 || m.offered()&(1<<id) == 0 {
		return statusUnsupported, nil // a driver may try
	}
	f := &m.feat
	u16 := func(at int, v int) { le.PutUint16(r[at:], uint16(v)) }
	u32 := func(at int, v uint32) { le.PutUint32(r[at:], v) }
	n := uint32(m.opt.Queues)
	switch id {
	case featAttributes:
		m.getAttributes(r)
	case featMaxQueues:
		for i, v := range []uint32{n, hostDepth, 2 * n, hostDepth, 0, 0, maxHeader} {
			u32(4*i, v)
		}
		u16(28, maxTxDescs)
		u16(30, maxRxDescs)
	case featMaxExt:
		if c[18] < 1 {
			return statusUnsupported, nil
		}
		r[0] = 1
		for i, v := range []uint32{n, 2 * n, n, 2 * n, hostDepth, hostDepth, hostDepth, hostDepth, maxHeader} {
			u32(4+4*i, v)
		}
		u16(40, maxTxDescs)
		u16(42, maxRxDescs)
	case featHints:
		h := &m.opt.Hints
		for i, v := range []uint16{h.MMIOReadTimeout, h.Watchdog, h.MissingTx, h.MissingTxCount, h.AdminTimeout,
			h.NetdevWatchdog, h.MaxTxSGL, h.MaxRxSGL} {
			u16(2*i, int(v))
		}
	case featLLQ:
		m.getLLQ(r, c[18])
	case featHash:
		u32(0, hashToeplitz|hashCRC32)
		u32(4, f.hash)
		u32(8, f.hashInit)
		if c[3]&6 != 0 {
			return m.putControl(c, what, append(le.AppendUint32(nil, keyWords),
				append(make([]byte, 4), f.key[:]...)...))
		}
	case featOffload:
		u32(0, m.txOffloads())
		u32(4, m.rxOffloads())
		u32(8, f.rxEnabled)
	case featTable:
		u16(0, tableLog)
		u16(2, tableLog)
		u16(4, tableLog)
		r[6] = 1 // single entries can be set
		u32(8, noInline)
		if c[3]&6 != 0 && f.table != nil {
			b := make([]byte, 4*len(f.table))
			for i, q := range f.table {
				le.PutUint16(b[4*i:], q)
			}
			return m.putControl(c, what, b)
		}
	case featMTU:
		u32(0, f.mtu)
	case featHashInput:
		var b [16 * hashProtos]byte
		for i := range f.fields {
			le.PutUint16(b[4*i:], supportedFields(i))
			le.PutUint16(b[4*(hashProtos+i):], f.fields[i])
		}
		return m.putControl(c, what, b[:])
	case featModeration:
		u16(0, delayUnit)
	case featAENQ:
		u32(0, eventGroups)
		u32(4, m.Groups)
	case featLink:
		u32(0, 25000)
		u32(4, 0x10) // 25 Gb/s
		u32(8, 1<<1) // full duplex
	default:
		return statusUnsupported, nil
	}
	return statusOK, nil
}

func (m *Model) getAttributes(r []byte) {
	le.PutUint32(r[0:], 1) // implementation
	le.PutUint32(r[4:], 1)
	le.PutUint32(r[8:], m.offered())
	caps := uint32(capENI | capExtendedReasons | capCDescMBZ)
	if !m.opt.NoMetrics {
		caps |= capMetrics
	}
	le.PutUint32(r[12:], caps)
	// The address widths of the device and its virtual function stay 0: drivers use CAPS (ena_com_get_dma_width).
	copy(r[24:30], m.opt.MAC[:])
	le.PutUint32(r[32:], m.opt.MaxMTU)
}

// putControl writes a feature's data to the command's control buffer in host memory.
func (m *Model) putControl(c *amazon.Message, what string, b []byte) (byte, error) {
	a, err := m.control(c, what, len(b))
	if err != nil {
		return statusIllegal, err
	}
	m.Host.DMAWrite(a, b)
	return statusOK, nil
}

// bodySize is the number of bytes of a feature's structure.
var bodySize = map[byte]int{featAENQ: 8, featHostAttr: 20, featLLQ: 32, featOffload: 12, featHash: 12, featTable: 16,
	featHashInput: 4}

// setFeature executes ena_admin_set_feat_cmd.
func (m *Model) setFeature(c *amazon.Message, r []byte) (byte, error) {
	id := c[17]
	what := fmt.Sprintf("SET_FEATURE %d", id)
	m.checkSelect(c, what)
	if id >= 32 || m.offered()&(1<<id) == 0 {
		return statusUnsupported, nil
	}
	f := &m.feat
	p := c[20:]
	if n := bodySize[id]; n > 0 && slices.ContainsFunc(p[n:], func(b byte) bool { return b != 0 }) {
		m.Host.Warnf("%s: bytes after the %d of the feature are set", what, n)
	}
	switch v := le.Uint32(p); id {
	case featMTU:
		if v < minMTU || v > m.opt.MaxMTU {
			return statusIllegal, fmt.Errorf("%s: MTU %d, %d to %d are expected", what, v, minMTU, m.opt.MaxMTU)
		}
		f.mtu = v
		if i := slices.IndexFunc(c[24:], func(b byte) bool { return b != 0 }); i >= 0 {
			m.Host.Warnf("%s: reserved byte %d is %#02x, must be zero", what, 24+i, c[24+i])
		}
	case featAENQ:
		enabled := le.Uint32(p[4:])
		if enabled&^eventGroups != 0 {
			return statusIllegal, fmt.Errorf("%s: groups %#x, %#x are supported", what, enabled, eventGroups)
		}
		m.Groups = enabled
		m.postLink()
	case featHostAttr:
		return m.setHost(c, what)
	case featLLQ:
		return m.setLLQ(c, what)
	case featOffload:
		if e := le.Uint32(p[8:]); e&^m.rxOffloads() != 0 {
			return statusIllegal, fmt.Errorf("%s: rx_enabled %#x, %#x are supported", what, e, m.rxOffloads())
		}
		f.rxEnabled = le.Uint32(p[8:])
	case featHash:
		return m.setHash(c, what)
	case featHashInput:
		return m.setHashInput(c, what)
	case featTable:
		return m.setTable(c, what)
	default:
		return statusUnsupported, fmt.Errorf("%s cannot be set", what)
	}
	return statusOK, nil
}

// setHost handles the host attributes, ena_admin_set_feature_host_attr_desc, and reads the page ena_admin_host_info.
func (m *Model) setHost(c *amazon.Message, what string) (byte, error) {
	a, err := m.address(c, what, 20)
	if err != nil {
		return statusIllegal, err
	}
	if _, err := m.address(c, what, 28); err != nil {
		return statusIllegal, err
	}
	if a == 0 {
		return statusIllegal, fmt.Errorf("%s: os_info_ba is zero", what)
	}
	if a%4096 != 0 {
		m.Host.Warnf("%s: os_info_ba %#x: a page is expected", what, a)
	}
	var b [4096]byte
	if m.Host.DMARead(a, b[:]) != nil {
		return statusIllegal, nil
	}
	os, spec := le.Uint32(b[0:]), le.Uint16(b[184:])
	switch {
	case os == 0 || os > 7:
		return statusIllegal, fmt.Errorf("%s: os_type %d, 1 to 7 are expected", what, os)
	case spec>>8 != 2:
		return statusIllegal, fmt.Errorf("%s: ena_spec_version %#x, major 2 is expected", what, spec)
	}
	m.feat.hostPage, m.feat.driverMajor = a, b[hostDriver]
	m.feat.rxOffset = le.Uint32(b[192:])>>1&1 != 0
	return statusOK, nil
}

// setHash handles ena_admin_feature_rss_flow_hash_function.
func (m *Model) setHash(c *amazon.Message, what string) (byte, error) {
	sel := le.Uint32(c[24:])
	if sel != hashToeplitz && sel != hashCRC32 {
		return statusIllegal, fmt.Errorf("%s: selected_func %#x: one of %#x is expected", what, sel,
			hashToeplitz|hashCRC32)
	}
	a, err := m.control(c, what, 8+len(m.feat.key))
	if err != nil {
		return statusIllegal, err
	}
	b := make([]byte, 8+len(m.feat.key))
	if m.Host.DMARead(a, b) != nil {
		return statusIllegal, nil
	}
	if parts := le.Uint32(b); sel == hashToeplitz && parts != keyWords || parts > keyWords {
		return statusIllegal, fmt.Errorf("%s: key_parts %d, %d are expected", what, parts, keyWords)
	}
	m.feat.hash, m.feat.hashInit = sel, le.Uint32(c[28:])
	copy(m.feat.key[:], b[8:])
	return statusOK, nil
}

// hashSort are the bits of sorted addresses and ports, which all public drivers set although GET_FEATURE does not offer
// them.
const hashSort = 1<<1 | 1<<2

// setHashInput handles ena_admin_feature_rss_hash_control.
func (m *Model) setHashInput(c *amazon.Message, what string) (byte, error) {
	a, err := m.control(c, what, 16*hashProtos)
	if err != nil {
		return statusIllegal, err
	}
	var b [16 * hashProtos]byte
	if m.Host.DMARead(a, b[:]) != nil {
		return statusIllegal, nil
	}
	if sort := le.Uint16(c[22:]); sort&^hashSort != 0 {
		m.Host.Warnf("%s: enabled_input_sort %#x is accepted and has no effect in this model", what, sort)
	}
	for i := range hashProtos {
		if v := le.Uint16(b[4*(hashProtos+i):]); v&^supportedFields(i) != 0 {
			return statusIllegal, fmt.Errorf("%s: fields %#x of protocol %d, %#x are supported", what, v, i,
				supportedFields(i))
		}
	}
	for i := range m.feat.fields {
		m.feat.fields[i] = le.Uint16(b[4*(hashProtos+i):])
	}
	return statusOK, nil
}

// setTable handles ena_admin_feature_rss_ind_table: the whole table, or one entry.
func (m *Model) setTable(c *amazon.Message, what string) (byte, error) {
	check := func(i int, q uint16) error {
		if int(q) >= len(m.rx) || !m.rx[q].live {
			return fmt.Errorf("%s: entry %d names receive queue %d, which does not exist", what, i, q)
		}
		return nil
	}
	if i := le.Uint32(c[28:]); i != noInline && c[3]&6 == 0 {
		q := le.Uint16(c[32:])
		if i >= uint32(len(m.feat.table)) {
			return statusIllegal, fmt.Errorf("%s: inline_index %d of a table of %d", what, i, len(m.feat.table))
		}
		if err := check(int(i), q); err != nil {
			return statusIllegal, err
		}
		m.feat.table[i] = q
		return statusOK, nil
	}
	if n := le.Uint16(c[24:]); n != tableLog {
		return statusIllegal, fmt.Errorf("%s: size %d, %d is supported", what, n, tableLog)
	}
	b := make([]byte, 4<<tableLog)
	a, err := m.control(c, what, len(b))
	if err != nil {
		return statusIllegal, err
	}
	if m.Host.DMARead(a, b) != nil {
		return statusIllegal, nil
	}
	table := make([]uint16, 1<<tableLog)
	for i := range table {
		table[i] = le.Uint16(b[4*i:])
		if err := check(i, table[i]); err != nil {
			return statusIllegal, err
		}
	}
	m.feat.table = table
	return statusOK, nil
}
