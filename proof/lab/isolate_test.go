package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// isolateHelpers start the responder on the Linux driver's interface with a dedicated CPU 1, and compare the machine
// before and after, file by file and thread by thread. $module is set before it.
const isolateHelpers = helpers + `
modprobe $module || fail modprobe $module
until_true 50 test -e /sys/class/net/eth0
dev=eth0
up
need mount -t cgroup2 none /sys/fs/cgroup
mount -t debugfs none /sys/kernel/debug 2>/dev/null
files() {
  grep -sH . /proc/irq/*/smp_affinity_list /proc/irq/default_smp_affinity /sys/devices/virtual/workqueue/cpumask \
      /sys/devices/virtual/workqueue/*/cpumask /proc/sys/kernel/watchdog_cpumask /proc/sys/vm/stat_interval \
      /sys/kernel/debug/sched/fair_server/cpu*/runtime /sys/devices/system/cpu/online /sys/devices/system/cpu/isolated \
      $(find /sys/fs/cgroup -name 'cpuset.*' -o -name cgroup.subtree_control -o -name cgroup.type)
  find /sys/fs/cgroup -type d
}
# Threads by number, with the CPUs that they may use. Workers of the kernel's work queues come and go, and an interrupt's thread
# is where the kernel chose to have the interrupt, of the CPUs that it may go to.
threads() {
  grep -sH '^Name:\|^Cpus_allowed_list:' /proc/[0-9]*/task/[0-9]*/status | awk '{
    value = $0; sub(/^[^:]*:[^:]*:[ \t]*/, "", value)
    if ($0 ~ /status:Name:/) name = value; else { split($0, path, "/"); print path[5], name, value }
  }' | grep -v ' kworker\| irq/' | sort
}
taskset 1 sleep 10000 &
taskset 3 sleep 10000 &
asleep() { [ $(pidof sleep | wc -w) = 2 ]; } # each on its processors
until_true 50 asleep
before() {
  files >/tmp/files; threads >/tmp/threads
  grep -q '/cpuset.cpus' /tmp/files && grep -q ' sleep [01-]*$' /tmp/threads || { show failed cat /tmp/files /tmp/threads; fail "files or threads are missing"; }
}
# What a thread had that lives still, it has again.
same_files() { files >/tmp/files2; diff /tmp/files /tmp/files2 >/tmp/other; }
same_threads() {
  threads >/tmp/threads2
  awk 'NR==FNR { had[$1]=$0; next } ($1 in had) && had[$1]!=$0 { print "was", had[$1], "is", $0; bad=1 } END { exit bad }' \
    /tmp/threads /tmp/threads2 >/tmp/other
}
restored() { # soon: the kernel may do a part of it later
  local n
  for what in files threads; do
    n=0
    until same_$what; do
      n=$((n+1)); [ $n -lt 60 ] || { show failed cat /tmp/other; fail "$1: of the $what one is not as it was"; }
      sleep 0.5
    done
  done
  [ -z "$(ls /run/rebound/isolate 2>/dev/null)" ] || fail "$1: a journal is left"
}
begin() { # CGROUP ARGUMENTS...
  local group=$1; shift
  : >/tmp/out # or what the one before wrote is taken for this one's
  sh -c 'echo $$ >'$group'/cgroup.procs; exec responder -v -set nic.driver=afpacket -set nic.device=eth0 -set respond.addresses=10.9.0.7 -set cpu.cores=1 "$@"' sh "$@" \
    >/tmp/out 2>/tmp/err &
  pid=$!
  await_ready
}
step() { grep -q "step=\"$1: $2" /tmp/err || { show failed grep isolation /tmp/err; fail "the log does not say: $1: $2"; }; }
# CPU 1 is in a partition, to which nobody outside can be bound.
held() {
  grep -q '^1$' /sys/fs/cgroup/cpuset.cpus.isolated || { show failed cat /tmp/err; fail "CPU 1 is not in an isolated partition"; }
  taskset 2 true 2>/dev/null && fail "a process outside can be bound to CPU 1"
  ours
}
# CPU 1 is nobody's but the polling loop's.
ours() {
  # The timer's and the cascade's are no devices'.
  grep -l '^0-1$' /proc/irq/[0-9]*/smp_affinity_list | grep -v '/[02]/' >/tmp/irqs && { show failed cat /tmp/irqs; fail "interrupts may still go to CPU 1"; }
  [ "$(cat /sys/devices/virtual/workqueue/cpumask)" = 1 ] || fail "unbound work may still go to CPU 1"
  # Only threads bound to CPU 1 may use it: the loop, and the kernel's own threads of that CPU.
  threads | awk '$NF=="0-1"' >/tmp/loose
  [ ! -s /tmp/loose ] || { show failed cat /tmp/loose; fail "threads may still use CPU 1"; }
  # A busy process stays away from it, and the loop is on it.
  sh -c 'while :; do :; done' & busy=$!
  for i in 1 2 3 4 5; do
    [ "$(awk '{print $39}' /proc/$busy/stat)" = 0 ] || fail "a busy process runs on CPU 1"
    sleep 0.1
  done
  kill $busy; wait $busy 2>/dev/null
  cat /proc/$pid/task/*/status | grep -q '^Cpus_allowed_list:[[:space:]]*1$' || fail "no thread of the responder is on CPU 1"
}
`

// effectScript shows the effect of isolation with two busy processes competing for both CPUs, for two seconds with and
// without. The times are those of an emulated machine.
const effectScript = `
for isolate in false true; do
  sh -c 'while :; do :; done' & a=$!
  sh -c 'while :; do :; done' & b=$!
  begin /sys/fs/cgroup -set cpu.isolate=$isolate
  sleep 2
  stop
  kill $a $b; wait $a $b 2>/dev/null
  show effect sh -c "grep '^wait \|^gap ' /tmp/out | sed 's/^/isolate=$isolate /'"
done
restored "busy processes"
say compared
`

// bootedScript runs on a kernel booted with CPU 1 isolated.
const bootedScript = isolateHelpers + `
before
begin /sys/fs/cgroup -set cpu.isolate=true
show log grep isolation /tmp/err
step partition "none needed: CPUs 1 have been isolated since boot"
step tick "stopped while only one thread runs there"
ours
stop
restored SIGTERM
say restored
` + effectScript

// isolateScript checks that the CPU is isolated and returned: at SIGTERM, after SIGKILL by release and by the next
// start, in the root cgroup and below another one.
const isolateScript = isolateHelpers + `
before
begin /sys/fs/cgroup -set cpu.isolate=true
show log grep isolation /tmp/err
for s in timers partition threads workqueues interrupts housekeeping; do step $s; done
step partition "CPUs 1 are an isolated partition"
step timers "CPUs 1 were briefly offline"
step tick "not done: CPUs 1 keep the timer tick: boot with nohz_full=1"
held
say taken
stop
restored SIGTERM
say restored

begin /sys/fs/cgroup -set cpu.isolate=true
held
kill -9 $pid; wait $pid 2>/dev/null
responder release >/tmp/released 2>&1 || { show failed cat /tmp/released; fail release; }
show log cat /tmp/released
grep -q 'undid .* changes' /tmp/released || { show failed cat /tmp/released; fail "release says nothing"; }
restored "SIGKILL and release"
say released

begin /sys/fs/cgroup -set cpu.isolate=true
kill -9 $pid; wait $pid 2>/dev/null
begin /sys/fs/cgroup
grep -q 'undid .* changes that it left' /tmp/err || { show failed cat /tmp/err; fail "the next start says nothing"; }
stop
restored "SIGKILL and the next start"
say restarted

need mkdir -p /sys/fs/cgroup/system.slice/rebound.service
before
begin /sys/fs/cgroup/system.slice/rebound.service -set cpu.isolate=true
step partition "CPUs 1 are an isolated partition, /sys/fs/cgroup/system.slice/rebound.service/"
held
stop
restored "remote partition"
say remote

responder -v -set nic.driver=afpacket -set nic.device=eth0 -set respond.addresses=10.9.0.7 -set cpu.cores=1 -set cpu.priority=50 >/tmp/out 2>/tmp/err
[ $? = 1 ] && grep -q 'responder: cpu.priority = 50: .*fair server of CPU 1: 50ms of each 1s.*echo 0 > /sys/kernel/debug/sched/fair_server/cpu1/runtime' /tmp/err ||
  { show failed cat /tmp/err; fail "cpu.priority is not refused"; }
before
umount /sys/kernel/debug
begin /sys/fs/cgroup -set cpu.priority=50 -set cpu.realtime_guard=lift -set trust.confine=require
grep -q 'msg=confined .*seccomp=' /tmp/err || { show failed cat /tmp/err; fail "not confined with a lifted guard"; }
mount -t debugfs none /sys/kernel/debug
[ "$(cat /sys/kernel/debug/sched/fair_server/cpu1/runtime)" = 0 ] || fail "the fair server is not lifted"
step "real-time guard" "disabled: fair server of CPU 1"
stop
restored "real-time guard"
responder check -set cpu.cores=1 -set cpu.priority=50 >/tmp/check 2>&1
show log grep guard /tmp/check
grep -q 'guard .*fair server of CPU 1: 50ms of each 1s; to disable it: echo 0' /tmp/check || { show failed cat /tmp/check; fail "check does not name the guard"; }
grep -q 'guard .*SCHED_FIFO 50 thread was descheduled from core 1' /tmp/check || { show failed cat /tmp/check; fail "the probe does not show the guard"; }
say guarded

need ip addr add 10.9.0.2/24 dev eth0
before
bench run -v -isolate -core 1 -target 10.9.0.1 -iface eth0 -driver afpacket -closed -count 300 -timeout 60s -warmup 0s -self-test 0s -out /tmp/report >/tmp/out 2>/tmp/err ||
  { show failed cat /tmp/err; fail "the bench ended with $?"; }
grep -q 'received 300' /tmp/out || { show failed cat /tmp/out; fail "the bench lost replies"; }
step partition "CPUs 1 are an isolated partition"
restored "bench -isolate"
say benched
` + effectScript

// TestLabIsolate has the responder isolate a CPU of a stock Debian, and return it however the responder ends.
func TestLabIsolate(t *testing.T) {
	guests(t)
	beside(t, "running", func(t *testing.T) { isolated(t, "", isolateScript) })
	beside(t, "booted", func(t *testing.T) {
		isolated(t, "isolcpus=managed_irq,domain,1 nohz_full=1 rcu_nocbs=1", bootedScript)
	})
}

func isolated(t *testing.T, cmdline, script string) {
	s, c := newScene(t), ixgbeCard
	near, far := sim.Pair()
	s.serve(c, near, c.model).foreign = true
	p := newPeer(far)
	defer p.close()
	_, err := s.play(Machine{
		Limit: 240 * time.Second, Append: cmdline, Files: s.programs("responder", "bench"),
		Script: fmt.Sprintf("module=%s\n%s", c.module, script),
	}, "log", "effect")
	must.OK(t, err)
}
