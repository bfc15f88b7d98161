//go:build !purego

package mmio

func bestPush() Push   { return Stores }
func bestCached() Push { return Stores }
