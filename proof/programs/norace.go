//go:build !race

package programs

// Race is whether programs and the tests that start them have the race detector.
const Race = false
