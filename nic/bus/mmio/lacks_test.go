//go:build !amd64 || purego

package mmio

// lacks says why this build cannot store blocks by p, or nothing.
func lacks(p Push) string {
	if p != Stores {
		return "instruction of amd64, left out of this build"
	}
	return ""
}
