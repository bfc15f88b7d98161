package nic

// Timestamper is a Device whose frames can be stamped by the kernel or by the card, besides the TSC that Recv returns.
// Stamps cost time on the way of each frame and are off until EnableTimestamps. Its methods belong to the goroutine that
// calls Send and Recv.
type Timestamper interface {
	// EnableTimestamps turns stamping on and returns what is in force. With hardware it also asks the card for stamps on
	// all frames, a setting of the interface that Close takes back; a card that has none leaves Hardware false, which is
	// no error.
	EnableTimestamps(hardware bool) (Timestamping, error)

	// RxTimestamp returns the stamp of the frame that the last Recv returned.
	RxTimestamp() Timestamp

	// TxTimestamp returns the next stamp of a sent frame, without waiting. id counts Sends since EnableTimestamps, from 0;
	// a frame stamped by both kernel and card yields two results with the same id. ok is false if none is waiting.
	TxTimestamp() (id uint32, t Timestamp, ok bool, err error)
}

// Timestamping says which stamps are in force.
type Timestamping struct {
	RxSoftware bool // by the kernel as the frame leaves the driver
	TxSoftware bool // by the kernel as the frame is handed to the card
	RxHardware bool // by the card
	TxHardware bool
}

// Timestamp is a point in time. Stamps of different clocks do not compare.
type Timestamp struct {
	Nanoseconds int64 // since the clock's epoch; 0 if the frame was not stamped
	Hardware    bool  // by the card's clock; otherwise by CLOCK_REALTIME
}
