package efasim

import "unsafe"

func pointer(b []byte) unsafe.Pointer { return unsafe.Pointer(&b[0]) }
