//go:build !cgo

package confine

var withCgo []string
