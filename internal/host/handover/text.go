package handover

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Sizes of messages in bytes, each with its final zero.
const (
	pingpongSize = 52  // "lid:qpn:psn:gid"
	doneSize     = 5   // "done"
	versionSize  = 16  // perftest's
	keysSize     = 108 // "lid:reads:qpn:psn:rkey:vaddr:" and the GID's bytes, each with a colon, and "srqn:"
	keysHead     = 50  // up to the GID
)

// dest is the data that one end sends about itself.
type dest struct {
	lid, reads, qpn, psn, rkey uint64
	vaddr                      uint64
	gid                        netip.Addr
}

// fields parses hexadecimal fields of fixed widths, each followed by a colon.
func fields(text string, widths ...int) (values []uint64, rest string, err error) {
	for _, w := range widths {
		if len(text) < w+1 || text[w] != ':' {
			return nil, "", fmt.Errorf("%q is not %d hexadecimal digits and a colon", clip(text), w)
		}
		v, err := strconv.ParseUint(text[:w], 16, 64)
		if err != nil || strings.ContainsAny(text[:w], "_+-xX") {
			return nil, "", fmt.Errorf("%q is not %d hexadecimal digits", clip(text[:w]), w)
		}
		values, text = append(values, v), text[w+1:]
	}
	return values, text, nil
}

// clip keeps an error short.
func clip(s string) string { return s[:min(len(s), 24)] }

// parsePingpong reads a message of ibv_ud_pingpong.
func parsePingpong(b []byte) (d dest, err error) {
	if len(b) != pingpongSize || b[pingpongSize-1] != 0 {
		return d, fmt.Errorf("%d bytes, expected %d with a zero at the end", len(b), pingpongSize)
	}
	v, rest, err := fields(string(b[:pingpongSize-1]), 4, 6, 6)
	if err != nil {
		return d, err
	}
	var gid [16]byte
	if _, err := hex.Decode(gid[:], []byte(rest)); err != nil || len(rest) != 32 {
		return d, fmt.Errorf("%q is not a GID", clip(rest))
	}
	d = dest{lid: v[0], qpn: v[1], psn: v[2], gid: netip.AddrFrom16(gid)}
	if d.gid.IsUnspecified() {
		return d, fmt.Errorf("the client has no GID: run ibv_ud_pingpong with -g 0")
	}
	return d, nil
}

// appendPingpong is the inverse of parsePingpong.
func appendPingpong(b []byte, d dest) []byte {
	gid := d.gid.As16()
	b = fmt.Appendf(b, "%04x:%06x:%06x:%x", d.lid&0xFFFF, d.qpn&0xFFFFFF, d.psn&0xFFFFFF, gid)
	return append(b, 0)
}

// withGID reports whether the first bytes of perftest's keys are of the form that has a GID; there are three more than
// keysHead of them.
func withGID(b []byte) bool { return b[keysHead+2] == ':' }

// parseKeys reads perftest's keys, of the form with a GID.
func parseKeys(b []byte) (d dest, err error) {
	if len(b) != keysSize || b[keysSize-1] != 0 {
		return d, fmt.Errorf("%d bytes, expected %d with a zero at the end", len(b), keysSize)
	}
	v, rest, err := fields(string(b[:keysSize-1]), 4, 4, 6, 6, 8, 16, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8)
	if err != nil {
		return d, err
	}
	if rest != "" {
		return d, fmt.Errorf("unexpected text at the end: %q", clip(rest))
	}
	var gid [16]byte
	for i := range gid {
		gid[i] = byte(v[6+i])
	}
	d = dest{lid: v[0], reads: v[1], qpn: v[2], psn: v[3], rkey: v[4], vaddr: v[5], gid: netip.AddrFrom16(gid)}
	if d.gid.IsUnspecified() {
		return d, fmt.Errorf("the client has no GID: run it with -x 0")
	}
	return d, nil
}

// appendKeys is the inverse of parseKeys.
func appendKeys(b []byte, d dest) []byte {
	b = fmt.Appendf(b, "%04x:%04x:%06x:%06x:%08x:%016x:", d.lid&0xFFFF, d.reads&0xFFFF, d.qpn&0xFFFFFF, d.psn&0xFFFFFF,
		d.rkey&0xFFFFFFFF, d.vaddr)
	for _, x := range d.gid.As16() {
		b = fmt.Appendf(b, "%02x:", x)
	}
	return append(b, "00000000:\x00"...)
}

// parseVersion reads perftest's version of its protocol.
func parseVersion(b []byte) (float64, error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 1 && v < 1000) {
		return 0, fmt.Errorf("%q is neither a version of perftest nor an address of ibv_ud_pingpong", clip(text))
	}
	return v, nil
}
