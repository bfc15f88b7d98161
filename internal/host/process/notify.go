package process

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Manager is the service manager that started this process. The methods of a nil Manager do nothing.
type Manager struct {
	socket   net.Conn
	watchdog time.Duration
}

// OpenManager connects to the manager named in the environment (NOTIFY_SOCKET), and returns nil if there is none. The
// connection stays open, because the process may later lose the right to open one. The variables are removed from the
// environment, so that child processes do not inherit them.
func OpenManager() (*Manager, error) {
	name, usec, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, v := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(v)
	}
	if name == "" {
		return nil, nil
	}
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%s: want the path of a socket, or @ and an abstract name", name)
	}
	m := &Manager{}
	if usec != "" && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC=%s: want microseconds, up to a day", usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	s, err := net.Dial("unixgram", name)
	if err != nil {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	m.socket = s
	return m, nil
}

// Ready reports that the program is in service. status is one line for the user.
func (m *Manager) Ready(status string) error { return m.send("READY=1\nSTATUS=" + oneLine(status)) }

// Stopping reports that the program is shutting down.
func (m *Manager) Stopping() error { return m.send("STOPPING=1") }

// Alive reports that the program still works.
func (m *Manager) Alive() error { return m.send("WATCHDOG=1") }

// Every is the interval for calls of Alive: half of the manager's watchdog timeout. 0 means never.
func (m *Manager) Every() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog / 2
}

// Close ends the connection.
func (m *Manager) Close() error {
	if m == nil {
		return nil
	}
	return m.socket.Close()
}

// patience limits the wait for a manager that does not read its socket. If the last message is lost, the manager still
// sees the process exit.
const patience = 2 * time.Second

func (m *Manager) send(state string) error {
	if m == nil {
		return nil
	}
	if err := m.socket.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	if _, err := m.socket.Write([]byte(state)); err != nil {
		return fmt.Errorf("service manager: %w", err)
	}
	return nil
}

func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", " ") }
