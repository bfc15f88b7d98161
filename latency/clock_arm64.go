package latency

// cntfrq reads CNTFRQ_EL0, the declared rate of the generic timer in Hz (Arm ARM D24.10.1).
func cntfrq() uint64

// counterSource returns the generic timer, whose rate is constant by architecture (Arm ARM D12.1).
func counterSource() (name string, steady bool, notes []string) { return "cntvct", true, nil }

func declaredFrequency() (hz float64, from string) { return float64(cntfrq()), "CNTFRQ_EL0" }
