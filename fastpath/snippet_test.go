package fastpath

import "unsafe"

func poll(r *Responder, frame []byte) int {
	n := len(frame)
	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
	if !r.Reply(h, n) {
		m = r.Slow(h, n)
	}
	r.Departing()
	return m
}

func slowly(r *Responder, frame []byte) int {
	return r.Slow((*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), len(frame))
}
