package fastpath

// Verdict is what became of a frame: the kind that was answered, or the reason why it was not.
type Verdict uint8

// Answered frames, by kind.
const (
	AnsweredICMPv4 Verdict = iota
	AnsweredUDPv4
	AnsweredICMPv6
	AnsweredUDPv6
	AnsweredARP
	AnsweredND
	AnsweredSTAMPv4
	AnsweredSTAMPv6

	verdicts
)

// Verdicts is the number of verdicts.
const Verdicts = int(verdicts)
