package report

import "slices"

// STAMP has what a STAMP reflector reported in its replies (RFC 8762, RFC 8972).
type STAMP struct {
	Mode     string `json:"mode"`                // "unauthenticated", "authenticated"
	SSID     int    `json:"ssid,omitempty"`      // session identifier
	ZeroSSID bool   `json:"zero_ssid,omitempty"` // replies had an SSID of 0: the reflector does not implement RFC 8972
	Stateful bool   `json:"stateful"`            // the reflector numbers its replies itself
	OneWay   OneWay `json:"one_way"`
	TLVs     []TLV  `json:"tlvs,omitempty"`
}

// OneWay describes the accuracy of the series one_way_there and one_way_back: each of their values may be wrong by up
// to ErrorNS, in an unknown direction. If Why is not empty, there are no such series.
type OneWay struct {
	ErrorNS int64      `json:"error_ns"` // sum of both clocks' errors
	Near    ClockError `json:"near"`     // this host's clock
	Far     ClockError `json:"far"`      // the reflector's
	Why     string     `json:"why_not,omitempty"`

	// Negative delays, which are counted as 0: the clocks differ by more than a delay.
	NegativeThere int64 `json:"negative_there,omitempty"`
	NegativeBack  int64 `json:"negative_back,omitempty"`
}

// Known reports whether there are one-way delays.
func (o *OneWay) Known() bool { return o.Why == "" }

// ClockError is the error bound of a clock, and its source.
type ClockError struct {
	NS     int64  `json:"error_ns"`
	Source string `json:"source"`
}

// TLV summarises the replies to one TLV of the probes (RFC 8972 §4).
type TLV struct {
	Name         string   `json:"name"`
	Answered     int64    `json:"answered"`     // replies with an answer
	Unrecognized int64    `json:"unrecognized"` // replies with flag U: not understood
	Malformed    int64    `json:"malformed"`    // replies with flag M
	Integrity    int64    `json:"integrity"`    // replies with flag I: the reflector found the HMAC wrong
	Answers      []string `json:"told,omitempty"`
}

// anonymize returns a copy without addresses.
func (s *STAMP) anonymize() *STAMP {
	if s == nil {
		return nil
	}
	c := *s
	c.TLVs = slices.Clone(s.TLVs)
	for i := range c.TLVs {
		c.TLVs[i].Answers = scrubAll(c.TLVs[i].Answers)
	}
	return &c
}
