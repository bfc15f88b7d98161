//go:build !race

package polling

func set64(p *uint64, v uint64) { *p = v }
func set32(p *uint32, v uint32) { *p = v }
