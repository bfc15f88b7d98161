package nic

// Inheritance is what a process receives from the one whose place it takes: open files, and the driver's description of them.
type Inheritance struct {
	State []byte
	Files []int

	// Afresh has the other process stop its loops and its device, for a driver that cannot continue where that process stopped: it
	// then starts the device again, with the files. It is nil where a port is no Yielder.
	Afresh func() error
}

// Heritable is a port whose sockets or device another process can continue to use, so that none of the frames that wait in them is lost.
type Heritable interface {
	// Bequest returns what another process opens the port with, as Options.Inherited, while this one serves. The files remain this port's.
	Bequest() (Inheritance, error)

	// Position returns where the other process continues. Call it when Serve has returned for all queues. After that, only Close may
	// be called.
	Position() ([]byte, error)

	// Continue makes a port that was opened with an Inheritance ready to be served, at the other process's Position.
	Continue(position []byte) error
}

// Yielder is a Heritable port that can stop its device for a process that starts it again.
type Yielder interface {
	// Yield stops the device and frees its memory; the files that Bequest returned still claim it. Call it in the place of Position.
	Yield() error
}
