package nic

// Inheritance is what a process receives from the one whose place it takes: open files, and the driver's description of them.
type Inheritance struct {
	State []byte
	Files []int
}

// Heritable is a port whose sockets another process can continue to use, so that none of the frames that wait in them is lost.
type Heritable interface {
	// Bequest returns what another process opens the port with, as Options.Inherited, while this one serves. The files remain this port's.
	Bequest() (Inheritance, error)

	// Position returns where the other process continues. Call it when Serve has returned for all queues. After that, only Close may
	// be called.
	Position() ([]byte, error)

	// Continue makes a port that was opened with an Inheritance ready to be served, at the other process's Position.
	Continue(position []byte) error
}
