// Package measure turns settings into reports.
//
//  1. Settings describe one series of probes: everything that -ab may vary, by the names of the flags (settings.go,
//     rows.go).
//  2. Open finds the path to the target and opens the port of each Series (open.go, port.go).
//  3. Run measures the series of a Plan alternately, or one after the other, on a dedicated CPU (session.go,
//     affinity.go). A hook changes a setting of the system before a slice (hook.go), a load runs beside a phase
//     (load.go). Neither runs on the measuring CPU, and nothing is measured meanwhile.
//  4. Each Series reports what its stream recorded, with drops, causes of slow round trips and the state of the host
//     (report.go, tail.go, drops.go).
package measure
