package kit

// Recorded is what a device answered to a command.
type Recorded struct {
	Status   uint8
	Syndrome uint32
	Out      []byte
}

// Answers returns what a device answered to the next command of that kind, nil if that is not known. A model that has them refuses
// what the device refused, and has that device's capabilities. Package proof/replay makes them from a probe file.
type Answers func(opcode, opMod, modifier uint32) *Recorded

// Next is nil if a is nil.
func (a Answers) Next(opcode, opMod, modifier uint32) *Recorded {
	if a == nil {
		return nil
	}
	return a(opcode, opMod, modifier)
}
