// Package osnoise finds out what ran on a polling core while its polling loop did not: another thread, an interrupt, a
// softirq, or nothing, because the thread was stopped, asleep or throttled. The name is that of Linux's tracer for the
// same noise.
//
// Small programs on the kernel's tracepoints (sched_switch, sched_wakeup, irq_handler, softirq, and the vectors of x86
// or the IPIs of arm64) report intervals longer than a threshold into a ring buffer. Each event has its start and end
// in CLOCK_MONOTONIC and in ticks of polling.TSC. A goroutine reads the ring 20 times per second; the programs never
// wake it, because a wakeup interrupts the polling core. The programs need Linux 5.8, CONFIG_BPF_EVENTS, and CAP_BPF
// with CAP_PERFMON (or CAP_SYS_ADMIN), but neither kprobes, schedstats, tracefs nor the kernel's types (BTF): only on
// Linux 5.8 to 5.17 the thread's state, and with it the difference between a preempted and a stopped thread, is read at
// an offset that the types give. The links are file descriptors: nothing stays attached after the process.
//
// Where the programs cannot be loaded, the counters of /proc are read instead. Their events are marked as weak: they
// say that something happened within some tens of milliseconds, not when, and seldom for how long. Time that the
// hypervisor took (steal) and system management interrupts have no tracepoint, and are weak everywhere.
//
// In a time namespace other than the machine's, ticks are wrong by its offset.
package osnoise

//go:generate go tool bpf2go -go-package osnoise -target bpfel -type event -type core -cflags "-O2 -Wall -Werror -mcpu=v3" program program.c
