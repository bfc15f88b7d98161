package fastpath

// LinkAddress is a station's MAC as the leaves compare it: six bytes as a little-endian machine loads them, shifted up by 16.
type LinkAddress uint64

// NewLinkAddress returns that of a MAC.
func NewLinkAddress(mac [6]byte) LinkAddress {
	return LinkAddress(le.Uint64([]byte{0, 0, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]}))
}
