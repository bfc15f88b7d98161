//go:build race

package polling

import "sync/atomic"

func set64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }
func set32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }
