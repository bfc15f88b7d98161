package observe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
)

// Bound is the maximum error of a clock, with its source.
type Bound struct {
	Error  time.Duration
	Source string
}

// errUnknown is returned if no source knows the clock error.
var errUnknown = errors.New("clock error unknown")

// Read returns the current bound: the user's if that is not 0, otherwise the lowest that chronyd and ptp4l report,
// otherwise the kernel's. iface is the interface used for measuring, whose PTP hardware clock is named if no program
// sets it; it may be "". It runs chronyc, and takes a few milliseconds.
func Read(stated time.Duration, iface string) (Bound, error) {
	if stated > 0 {
		return Bound{stated, "stated by -clock-error"}, nil
	}
	chrony, noChrony := queryChrony()
	ptp, noPTP := queryPTP(ptp4lSocket, readPHC)
	switch {
	case noChrony == nil && (noPTP != nil || chrony.Error <= ptp.Error):
		return chrony, nil
	case noPTP == nil:
		return ptp, nil
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	kernel, noKernel := fromKernel(state, &t, err)
	if noKernel == nil {
		return kernel, nil
	}
	why := []error{noChrony, noPTP}
	if iface != "" {
		if h, err := readPHC(iface); err == nil {
			why = append(why, fmt.Errorf(
				"%s of %s is %v ± %v ahead of the system's clock, and its own error is unknown", h.name, iface, h.ahead,
				(h.window+1)/2))
		} else if !errors.Is(err, errNoPHC) {
			why = append(why, fmt.Errorf("the PTP hardware clock of %s: %w", iface, err))
		}
	}
	return Bound{}, unknown(append(why, noKernel))
}

// unknown returns errUnknown with the reasons.
func unknown(why []error) error {
	err := errUnknown
	for _, w := range why {
		err = fmt.Errorf("%w; %w", err, w)
	}
	return fmt.Errorf("%w (set -clock-error)", err)
}

// Worst is the bound for a measurement between two readings: it is unknown if either reading is unknown.
func Worst(a, b Bound) Bound {
	if b.Error > a.Error {
		return b
	}
	return a
}

// fromKernel is the kernel's own bound, which grows until the program that disciplines the clock renews it
// (adjtimex(2)).
func fromKernel(state int, t *unix.Timex, err error) (Bound, error) {
	switch {
	case err != nil:
		return Bound{}, fmt.Errorf("adjtimex: %w", err)
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		return Bound{}, errors.New("the kernel reports its clock as unsynchronised (adjtimex)")
	case fastpath.UnknownError(t.Maxerror):
		return Bound{}, fmt.Errorf(
			"the program that sets the clock does not report its error to the kernel (adjtimex: maxerror of %d µs counts from 0): phc2sys, ptp4l and systemd-timesyncd do not", t.Maxerror)
	}
	return Bound{time.Duration(t.Maxerror) * time.Microsecond, "the kernel (adjtimex: maxerror)"}, nil
}

// queryChrony returns the error bound of the system clock that chronyd reports, within two seconds.
func queryChrony() (Bound, error) {
	path, err := exec.LookPath("chronyc")
	if err != nil {
		return Bound{}, errors.New("chronyc not found")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "-n", "-c", "tracking").Output()
	if err != nil {
		return Bound{}, fmt.Errorf("chronyc tracking: %w (%s)", err, strings.TrimSpace(string(out)))
	}
	return parseTracking(string(out))
}

// Fields of `chronyc -c tracking` (chronyc(1), in the order in which it prints them).
const (
	fieldReference = 0
	fieldOffset    = 4 // seconds by which the system's clock differs from chronyd's estimate
	fieldDelay     = 10
	fieldDisperse  = 11
	fieldLeap      = 13
	trackingFields = 14
)

// localReference is the identifier that chronyd uses when it follows only its own clock.
const localReference = "7F7F0101"

// parseTracking reads the bound that chronyc(1) gives: |offset| + root dispersion + root delay/2.
func parseTracking(text string) (Bound, error) {
	f := strings.Split(strings.TrimSpace(text), ",")
	if len(f) < trackingFields {
		return Bound{}, fmt.Errorf("chronyc tracking: %d fields, expected %d", len(f), trackingFields)
	}
	switch {
	case f[fieldLeap] == "Not synchronised":
		return Bound{}, errors.New("chronyd is not synchronised")
	case f[fieldReference] == localReference:
		return Bound{}, errors.New("chronyd follows only its own clock")
	}
	var v [trackingFields]float64
	for _, i := range [...]int{fieldOffset, fieldDelay, fieldDisperse} {
		var err error
		if v[i], err = strconv.ParseFloat(f[i], 64); err != nil || math.IsNaN(v[i]) || math.IsInf(v[i], 0) {
			return Bound{}, fmt.Errorf("chronyc tracking: field %d is %q, expected seconds", i+1, f[i])
		}
	}
	s := math.Abs(v[fieldOffset]) + v[fieldDisperse] + v[fieldDelay]/2
	if s <= 0 || s > 1e6 {
		return Bound{}, fmt.Errorf("chronyc tracking: an error of %g s", s)
	}
	return Bound{time.Duration(math.Ceil(s * 1e9)), "chronyd (offset, root dispersion and half the root delay)"}, nil
}

// hardwareClock is a PTP hardware clock (PHC) compared with the system's clock.
type hardwareClock struct {
	name  string        // /dev/ptp0
	ahead time.Duration // offset of the system's clock from the PHC, including whole seconds of TAI
	// the error of the reading is at most half of it: 0 if the hardware reads both at the same moment
	window time.Duration
}

// errNoPHC means that an interface has no PHC.
var errNoPHC = errors.New("it has no PTP hardware clock")

// readPHC reads the PHC of a network interface.
func readPHC(iface string) (h hardwareClock, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return h, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolTsInfo(fd, iface)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return h, errNoPHC
	case err != nil:
		return h, fmt.Errorf("ETHTOOL_GET_TS_INFO: %w", err)
	case info.Phc_index < 0:
		return h, errNoPHC
	}
	h.name = fmt.Sprintf("/dev/ptp%d", info.Phc_index)
	f, err := os.Open(h.name) // reading a clock needs no write permission
	if err != nil {
		return h, err
	}
	defer f.Close()
	clock := int(f.Fd())
	if p, err := unix.IoctlPtpSysOffsetPrecise(clock); err == nil {
		h.ahead = time.Duration(nanoseconds(p.Device) - nanoseconds(p.Realtime))
		return h, nil
	}
	const samples = 10
	x, err := unix.IoctlPtpSysOffsetExtended(clock, samples)
	if err != nil {
		return h, fmt.Errorf("%s: PTP_SYS_OFFSET_EXTENDED: %w", h.name, err)
	}
	h.ahead, h.window, err = nearest(x.Ts[:min(int(x.Samples), len(x.Ts))])
	return h, err
}

// nearest uses the sample whose two readings of the system's clock are closest to each other: before, PHC, after.
func nearest(all [][3]unix.PtpClockTime) (ahead, window time.Duration, err error) {
	best := int64(-1)
	for _, r := range all {
		before, after := nanoseconds(r[0]), nanoseconds(r[2])
		if w := after - before; w >= 0 && (best < 0 || w < best) {
			best = w
			ahead = time.Duration(nanoseconds(r[1]) - before - w/2)
		}
	}
	if best < 0 {
		return 0, 0, errors.New("the system's clock went backwards in each reading of the PHC")
	}
	return ahead, time.Duration(best), nil
}

func nanoseconds(t unix.PtpClockTime) int64 { return t.Sec*1e9 + int64(t.Nsec) }

// ptp4lSocket is where linuxptp's ptp4l receives management messages, unless its uds_address is set.
const ptp4lSocket = "/run/ptp4l"

// Management messages of IEEE 1588-2008 §15, and linuxptp's own message with the interface of a port.
const (
	idCurrent    = 0x2001 // currentDS
	idParent     = 0x2002 // parentDS
	idTime       = 0x2003 // timePropertiesDS
	idPort       = 0x2004 // portDS
	idProperties = 0xC004 // PORT_PROPERTIES_NP

	headerSize     = 34
	managementSize = headerSize + 14 // including the target and the action
	tlvData        = managementSize + 6
	sourcePort     = headerSize - 14 // the header's sourcePortIdentity: clock (8), port (2)

	typeManagement   = 0x0D
	actionGet        = 0
	actionResponse   = 2
	tlvManagement    = 1
	offAction        = headerSize + 12
	scopeBoundary    = 0x7F
	controlOfManager = 4
)

// ptp is ptp4l's information about its clock.
type ptp struct {
	offset, path time.Duration // from the master, and the mean delay of the path to it
	steps        int           // clocks on the path to the grandmaster; 0 if this clock is the grandmaster
	accuracy     byte          // clockAccuracy of the grandmaster
	timescale    bool          // the time scale is TAI
	utcOffset    time.Duration // of TAI from UTC
	iface        string        // of the port that follows the master, or of a master port
	software     bool          // ptp4l disciplines the system's clock
}

// accuracies are the grandmaster's clockAccuracy values, from 17h on (IEEE 1588-2019 table 5; that of 2008 starts at
// 20h).
var accuracies = [...]time.Duration{1, 1, 1, 1, 1, 1, 1, 3, 10, 25, 100, 250, 1000, 2500, 10e3, 25e3, 100e3, 250e3, 1e6,
	2500e3, 10e6, 25e6, 100e6, 250e6, 1e9, 10e9}

const firstAccuracy = 0x17

// bound is the maximum error of the system's clock. h is the PHC of p.iface, if p.software is not set.
func (p *ptp) bound(h hardwareClock) (Bound, error) {
	clock := "the system's clock"
	sum := p.offset.Abs() + p.path // the asymmetry is at most the path's mean delay
	source := fmt.Sprintf("ptp4l (%v off its master, path of %v", p.offset, p.path)
	if !p.software {
		clock = h.name
		off := -h.ahead
		if p.timescale {
			off += p.utcOffset
		}
		if off.Abs() >= time.Second {
			return Bound{}, fmt.Errorf(
				"the system's clock is %v from %s of %s, which ptp4l sets: nothing (phc2sys) synchronises the two", off,
				h.name, p.iface)
		}
		sum += off.Abs() + (h.window+1)/2
		source += fmt.Sprintf("; system's clock %v ± %v from %s of %s", off, (h.window+1)/2, h.name, p.iface)
	}
	i := int(p.accuracy) - firstAccuracy
	switch {
	case p.steps > 1:
		return Bound{}, fmt.Errorf(
			"%s): PTP does not report the error of the %d boundary clocks on the path to the grandmaster", source,
			p.steps-1)
	case i < 0 || i >= len(accuracies):
		return Bound{}, fmt.Errorf(
			"%s): the grandmaster does not report its accuracy (clockAccuracy %02Xh), so %s's own error is unknown",
			source, p.accuracy, clock)
	}
	return Bound{sum + accuracies[i], fmt.Sprintf("%s; grandmaster accurate to %v)", source, accuracies[i])}, nil
}

// queryPTP queries ptp4l at a socket, and reads the PHC that it disciplines.
func queryPTP(socket string, phc func(iface string) (hardwareClock, error)) (Bound, error) {
	if _, err := os.Stat(socket); err != nil {
		return Bound{}, fmt.Errorf("no ptp4l at %s", socket)
	}
	p, err := queryPTP4L(socket)
	if err != nil {
		return Bound{}, fmt.Errorf("ptp4l at %s: %w", socket, err)
	}
	var h hardwareClock
	if !p.software {
		if h, err = phc(p.iface); err != nil {
			return Bound{}, fmt.Errorf("ptp4l sets the clock of %s: %w", p.iface, err)
		}
	}
	return p.bound(h)
}

// manager is a client of ptp4l's socket.
type manager struct {
	conn        *net.UnixConn
	to          *net.UnixAddr
	sdo, domain byte // majorSdoId and domain that ptp4l responds to
	seq         uint16
}

// queryPTP4L collects ptp4l's information.
func queryPTP4L(socket string) (*ptp, error) {
	// ptp4l only responds to a name in the file system. Use a folder in /run if possible, because other services often
	// have a private /tmp.
	name := fmt.Sprintf("rebound-ptp-%d-", os.Getpid())
	dir, err := os.MkdirTemp("/run", name)
	if err != nil {
		if dir, err = os.MkdirTemp("", name); err != nil {
			return nil, err
		}
	}
	defer os.RemoveAll(dir)
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "answers"), Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	m := &manager{conn: c, to: &net.UnixAddr{Name: socket, Net: "unixgram"}}
	if err := m.find(); err != nil {
		return nil, err
	}
	var p ptp
	one := func(id uint16, size int) ([]byte, error) {
		a, err := m.get(id, size)
		if err != nil {
			return nil, err
		}
		return a[0].data, nil
	}
	current, err := one(idCurrent, 18)
	if err != nil {
		return nil, err
	}
	parent, err := one(idParent, 32)
	if err != nil {
		return nil, err
	}
	scale, err := one(idTime, 4)
	if err != nil {
		return nil, err
	}
	be := binary.BigEndian
	p.steps = int(be.Uint16(current))
	p.offset, p.path = interval(current[2:]), interval(current[10:]).Abs()
	p.accuracy = parent[20]
	p.utcOffset, p.timescale = time.Duration(int16(be.Uint16(scale)))*time.Second, scale[2]&8 != 0
	properties, err := m.get(idProperties, 13)
	if err != nil {
		return nil, err
	}
	const master, slave = 6, 9
	want := byte(slave)
	if p.steps == 0 {
		want = master // this clock is the grandmaster
	}
	var number uint16
	for _, a := range properties {
		if a.data[10] != want || len(a.data) < 13+int(a.data[12]) {
			continue
		}
		p.iface, p.software, number = string(a.data[13:13+int(a.data[12])]), a.data[11] == 0, a.port
		break
	}
	switch {
	case p.iface == "" && want == slave:
		return nil, errors.New("no port follows a master (state SLAVE)")
	case p.iface == "":
		return nil, errors.New("it has no master, and no port is a master")
	}
	ports, err := m.get(idPort, 26)
	if err != nil {
		return nil, err
	}
	for _, a := range ports { // with peer-to-peer delay measurement, the path delay is here
		if a.port == number {
			p.path = max(p.path, interval(a.data[12:]).Abs())
		}
	}
	return &p, nil
}

// interval is a TimeInterval: nanoseconds with 16 bits of fraction (IEEE 1588-2008 §5.3.2), rounded away from zero.
func interval(b []byte) time.Duration {
	v := int64(binary.BigEndian.Uint64(b))
	if v < 0 {
		return time.Duration(v >> 16)
	}
	return time.Duration(v>>16) + time.Duration(min(v&0xFFFF, 1))
}

// patience is how long ptp4l may take to respond: it does so between two of its packets. Tests use a longer time.
var patience = 500 * time.Millisecond

const (
	// all responses to one message arrive within this time, because they are sent together
	together = 20 * time.Millisecond
	domains  = 128 // IEEE 1588-2008 §7.1
	sdos     = 2   // 802.1AS messages have a majorSdoId of 1
)

// find determines ptp4l's domain, because it responds to no other.
func (m *manager) find() error {
	if _, err := m.get(idCurrent, 18); err == nil {
		return nil
	}
	for sdo := range byte(sdos) {
		for d := range byte(domains) {
			m.sdo, m.domain = sdo, d
			if err := m.send(idCurrent); err != nil {
				return err
			}
		}
	}
	b, err := m.receive(time.Now().Add(patience))
	if err != nil {
		return fmt.Errorf("it does not answer in any domain: %w", err)
	}
	m.sdo, m.domain = b[0]>>4, b[4]
	return nil
}

// send asks the PTP daemon for the data set id (IEEE 1588, 15.4: a management message with action GET).
func (m *manager) send(id uint16) error {
	b := make([]byte, tlvData)
	m.seq++
	b[0], b[1] = m.sdo<<4|typeManagement, 2
	be := binary.BigEndian
	be.PutUint16(b[2:], uint16(len(b)))
	b[4] = m.domain
	be.PutUint16(b[sourcePort+8:], 1)
	be.PutUint16(b[sourcePort+10:], m.seq)
	b[32], b[33] = controlOfManager, scopeBoundary
	for i := range 10 { // to all clocks and ports
		b[headerSize+i] = 0xFF
	}
	b[offAction] = actionGet
	be.PutUint16(b[managementSize:], tlvManagement)
	be.PutUint16(b[managementSize+2:], 2)
	be.PutUint16(b[managementSize+4:], id)
	m.conn.SetWriteDeadline(time.Now().Add(patience))
	_, err := m.conn.WriteToUnix(b, m.to)
	return err
}

// answer is the data of a response, and the port that sent it.
type answer struct {
	port uint16
	data []byte
}

// get requests id and returns the responses, one per port if id belongs to ports, with at least size bytes each.
func (m *manager) get(id uint16, size int) (all []answer, err error) {
	if err := m.send(id); err != nil {
		return nil, err
	}
	until := time.Now().Add(patience)
	for {
		b, err := m.receive(until)
		if err != nil && len(all) > 0 {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("management message %04Xh: %w", id, err)
		}
		a, err := parse(b, id, m.seq)
		switch {
		case errors.Is(err, errOther):
			continue
		case err != nil:
			return nil, err
		case len(a.data) < size:
			return nil, fmt.Errorf("management message %04Xh: %d bytes, expected %d", id, len(a.data), size)
		}
		all = append(all, a)
		until = time.Now().Add(together)
	}
}

func (m *manager) receive(until time.Time) ([]byte, error) {
	b := make([]byte, 2048)
	m.conn.SetReadDeadline(until)
	n, err := m.conn.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errors.New("no answer")
	}
	if err == nil && n < headerSize {
		err = fmt.Errorf("an answer of %d bytes", n)
	}
	return b[:n], err
}

// errOther means that a message is the response to another request.
var errOther = errors.New("not an answer to this")

// parse reads the response to message id with sequence number seq.
func parse(b []byte, id, seq uint16) (a answer, err error) {
	be := binary.BigEndian
	switch {
	case len(b) < tlvData, b[0]&15 != typeManagement, be.Uint16(b[sourcePort+10:]) != seq:
		return a, errOther
	case b[offAction]&15 != actionResponse:
		return a, errOther
	case be.Uint16(b[managementSize:]) != tlvManagement:
		return a, fmt.Errorf("management message %04Xh was refused", id)
	case be.Uint16(b[managementSize+4:]) != id:
		return a, errOther
	}
	n := int(be.Uint16(b[managementSize+2:])) - 2
	if n < 0 || n > len(b)-tlvData {
		return a, fmt.Errorf("management message %04Xh: a length of %d in %d bytes", id, n+2, len(b))
	}
	return answer{be.Uint16(b[sourcePort+8:]), b[tlvData:][:n:n]}, nil
}
