// Package process has what the programs have in common as processes: exit codes and signals, the log, the service
// manager (sd_notify(3)), which pages stay in memory, on which CPUs threads run, the end of a child's output, and what
// the program was built from.
package process
