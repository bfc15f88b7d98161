//go:build !amd64 || purego

package mmio

// lacks returns the reason why this build cannot store blocks with p, or "".
func lacks(p Push) string {
	if p != Stores {
		return "instruction of amd64, left out of this build"
	}
	return ""
}
