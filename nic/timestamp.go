package nic

// Timestamper is a Device whose frames the kernel or the card can timestamp, besides the TSC that Recv returns.
// Timestamps slow every frame down and are off until EnableTimestamps. Its methods belong to the goroutine that calls
// Send and Recv.
type Timestamper interface {
	// EnableTimestamps turns timestamps on and returns which are active. With hardware it also asks the card to
	// timestamp all frames, an interface setting that Close restores. If the card cannot, RxHardware is false, and that
	// is not an error.
	EnableTimestamps(hardware bool) (Timestamping, error)

	// RxTimestamp returns the timestamp of the frame that the last Recv returned.
	RxTimestamp() Timestamp

	// TxTimestamp returns the next timestamp of a sent frame, without waiting. id counts Sends since EnableTimestamps,
	// from 0. A frame timestamped by both kernel and card yields two results with the same id. ok is false if none is
	// available. A card may timestamp one frame at a time, and then others have none.
	TxTimestamp() (id uint32, t Timestamp, ok bool, err error)
}

// PTPTimestamper is a Timestamper whose card timestamps only PTP messages among received frames (RxPTP).
type PTPTimestamper interface {
	Timestamper

	// TimestampPort selects the UDP port whose messages have timestamps from now on.
	TimestampPort(port uint16) error
}

// CardClock is a Timestamper whose card's clock can be read, so that the card's timestamps have a place in the host's
// time.
type CardClock interface {
	Timestamper

	// ReadClock returns what the clock of the card's timestamps shows, in ns. It waits for the card, about 2 µs.
	ReadClock() (int64, error)
}

// Timestamping reports which timestamps are active.
type Timestamping struct {
	RxSoftware bool // by the kernel when the driver passes the frame on
	TxSoftware bool // by the kernel when it gives the frame to the card
	RxHardware bool // by the card
	TxHardware bool
	RxPTP      bool // by the card, only of UDP datagrams to one port that start like an event message of PTP version 2
}

// Timestamp is a point in time. Timestamps of different clocks cannot be compared.
type Timestamp struct {
	Nanoseconds int64 // since the clock's epoch; 0 if the frame has no timestamp
	Hardware    bool  // by the card's clock; otherwise by CLOCK_REALTIME
}
