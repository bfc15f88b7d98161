package parts

// Recorded is a device's recorded answer to a command.
type Recorded struct {
	Status   uint8
	Syndrome uint32
	Out      []byte
}

// Answers returns the recorded answer to the next command of that kind, or nil if there is none. A model with recorded
// answers has that device's capabilities and refuses what it refused. Package proof/replay makes them from a probe
// file.
type Answers func(opcode, opMod, modifier uint32) *Recorded

// Next calls a. It returns nil if a is nil.
func (a Answers) Next(opcode, opMod, modifier uint32) *Recorded {
	if a == nil {
		return nil
	}
	return a(opcode, opMod, modifier)
}
