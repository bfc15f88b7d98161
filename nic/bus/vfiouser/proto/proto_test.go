package proto

import "testing"

// QEMU's vfio-user client fails with "max_dma_maps too large" if the server announces more than 65535.
func TestVersionAnnouncesWhatQEMUAccepts(t *testing.T) {
	c, err := ParseVersion(VersionBody())
	if err != nil || c.MaxDMAMaps > 65535 {
		t.Errorf("announced %d maps, %v; QEMU accepts at most 65535", c.MaxDMAMaps, err)
	}
}
